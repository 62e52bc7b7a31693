"""How the multiplier follows the violation: projected ascent, Adam, Adam in log space, PID.

Each rule is its settings, with a pure `init` and `step`; `state.lam` is the multiplier.
"""

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from algd.networks.adam import adam_step, init_moments

DualName = Literal["projected", "adam", "log-adam", "pid"]
PerConstraint = Float[Array, " constraints"]


def hinged_multiplier(lam: PerConstraint, violation: PerConstraint, rho: float) -> PerConstraint:
    r"""$[\lambda + \rho\, e]_+$: how strongly the augmented Lagrangian weighs the cost.

    CAL's $\lambda - \min(\lambda, -\rho e)$ is the same number.
    """
    return jnp.maximum(lam + rho * violation, 0.0)


class ProjectedState(eqx.Module):
    """The multiplier itself."""

    lam: PerConstraint

    def scaled(self, factor: PerConstraint) -> "ProjectedState":
        """The multiplier in another unit of return over cost; below zero it is a limit, which has
        no such unit."""
        return ProjectedState(jnp.where(self.lam > 0.0, self.lam * factor, self.lam))


@dataclass(frozen=True)
class ProjectedAscent:
    r"""$\lambda \leftarrow \max(\lambda + \eta\, e, \lambda_{min})$ with $e = Q_c - h$.

    Inside an augmented Lagrangian a multiplier below zero is a limit above h, since $[\lambda +
    \rho (Q_c - h)]_+ = \rho\,[Q_c - (h - \lambda/\rho)]_+$.
    """

    rate: float
    floor: float = 0.0

    def init(self, lam: PerConstraint) -> ProjectedState:
        """Start at `lam`."""
        return ProjectedState(lam)

    def step(self, state: ProjectedState, violation: PerConstraint) -> ProjectedState:
        """One step of projected gradient ascent."""
        return ProjectedState(jnp.maximum(state.lam + self.rate * violation, self.floor))


class AdamState(eqx.Module):
    """The multiplier itself and Adam's moments."""

    lam: PerConstraint
    moments: tuple

    def scaled(self, factor: PerConstraint) -> "AdamState":
        """The multiplier in another unit of return over cost."""
        return AdamState(self.lam * factor, self.moments)


@dataclass(frozen=True)
class ProjectedAdam:
    r"""Adam on $\lambda$ for the loss $-\lambda\, e$, then $[\cdot]_+$."""

    rate: float

    def init(self, lam: PerConstraint) -> AdamState:
        """Start at `lam`."""
        return AdamState(lam, init_moments(lam))

    def step(self, state: AdamState, violation: PerConstraint) -> AdamState:
        """One Adam step; d(-lam e)/d lam = -e."""
        lam, moments = adam_step(state.lam, -violation, state.moments, self.rate)
        return AdamState(jnp.maximum(lam, 0.0), moments)


class LogAdamState(eqx.Module):
    """The logarithm of the multiplier and Adam's moments."""

    log_lam: PerConstraint
    moments: tuple

    @property
    def lam(self) -> PerConstraint:
        """The multiplier, always positive."""
        return jnp.exp(self.log_lam)

    def scaled(self, factor: PerConstraint) -> "LogAdamState":
        """The multiplier in another unit of return over cost."""
        return LogAdamState(self.log_lam + jnp.log(factor), self.moments)


@dataclass(frozen=True)
class LogAdam:
    r"""Adam on $\log\lambda$ for the loss $-\lambda\, e$; multiplicative, never exactly zero."""

    rate: float

    def init(self, lam: PerConstraint) -> LogAdamState:
        """Start at `lam` > 0."""
        log_lam = jnp.log(lam)
        return LogAdamState(log_lam, init_moments(log_lam))

    def step(self, state: LogAdamState, violation: PerConstraint) -> LogAdamState:
        """One Adam step; d(-lam e)/d log lam = -lam e."""
        log_lam, moments = adam_step(
            state.log_lam, -state.lam * violation, state.moments, self.rate
        )
        return LogAdamState(log_lam, moments)


class PIDState(eqx.Module):
    """The multiplier, the integral of the error and the last error."""

    lam: PerConstraint
    integral: PerConstraint
    previous: PerConstraint

    def scaled(self, factor: PerConstraint) -> "PIDState":
        """The multiplier in another unit of return over cost."""
        return PIDState(self.lam * factor, self.integral * factor, self.previous)


@dataclass(frozen=True)
class PID:
    r"""$\lambda = [K_P [e]_+ + K_I I + K_D [e - e_{prev}]_+]_+$ with $I \leftarrow [I + e]_+$."""

    proportional: float
    integral: float
    derivative: float

    def init(self, lam: PerConstraint) -> PIDState:
        """Start with the integral that gives `lam` at zero error."""
        zeros = jnp.zeros_like(lam)
        return PIDState(lam, lam / self.integral if self.integral > 0 else zeros, zeros)

    def step(self, state: PIDState, violation: PerConstraint) -> PIDState:
        """Feed in one error."""
        integral = jnp.maximum(state.integral + violation, 0.0)
        rise = jnp.maximum(violation - state.previous, 0.0)
        lam = (
            self.proportional * jnp.maximum(violation, 0.0)
            + self.integral * integral
            + self.derivative * rise
        )
        return PIDState(jnp.maximum(lam, 0.0), integral, violation)


class SmoothedPIDState(eqx.Module):
    """The multiplier, the integral, the smoothed error, the last smoothed costs, oldest first."""

    lam: PerConstraint
    integral: PerConstraint
    error: PerConstraint
    costs: Float[Array, "delay constraints"]


@dataclass(frozen=True)
class SmoothedPID:
    r"""PID on the cost of episodes, smoothed and with a delayed derivative (CPPOPID).

    $\lambda = [K_P \bar e + I + K_D [\bar J - \bar J_{delay}]_+]_+$ with
    $I \leftarrow [I + K_I e]_+$ and exponential means $\bar e$, $\bar J$ of error and cost.
    """

    proportional: float
    integral: float
    derivative: float
    delay: int
    smoothing: float
    """Weight of the past in the exponential means."""

    def init(self, lam: PerConstraint) -> SmoothedPIDState:
        """Start with the integral that gives `lam` at zero error."""
        zeros = jnp.zeros_like(lam)
        return SmoothedPIDState(lam, lam, zeros, jnp.zeros((self.delay, *lam.shape), lam.dtype))

    def step(
        self, state: SmoothedPIDState, cost: PerConstraint, limit: PerConstraint
    ) -> SmoothedPIDState:
        """Feed in the mean cost of episodes."""
        violation = cost - limit
        integral = jnp.maximum(state.integral + self.integral * violation, 0.0)
        error = self.smoothing * state.error + (1.0 - self.smoothing) * violation
        smoothed = self.smoothing * state.costs[-1] + (1.0 - self.smoothing) * cost
        rise = jnp.maximum(smoothed - state.costs[0], 0.0)
        lam = self.proportional * error + integral + self.derivative * rise
        costs = jnp.concatenate([state.costs[1:], smoothed[None]])
        return SmoothedPIDState(jnp.maximum(lam, 0.0), integral, error, costs)


Dual = ProjectedAscent | ProjectedAdam | LogAdam | PID
DualState = ProjectedState | AdamState | LogAdamState | PIDState


def dual_rule(
    name: DualName, rate: float, pid: tuple[float, float, float], floor: float = 0.0
) -> Dual:
    """The rule of that name: the gains `pid` serve the PID rule, `rate` all others, and `floor`
    bounds projected ascent."""
    if name == "projected":
        return ProjectedAscent(rate, floor)
    if name == "adam":
        return ProjectedAdam(rate)
    if name == "log-adam":
        return LogAdam(rate)
    return PID(*pid)
