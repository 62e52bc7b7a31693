"""How the multiplier follows the violation: projected ascent, Adam in log space, PID.

Each rule is its settings, with a pure `init` and `step`; `state.lam` is the multiplier.
"""

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from algd.networks import descend, init_moments

DualName = Literal["projected", "log-adam", "pid"]
PerConstraint = Float[Array, " constraints"]


class ProjectedState(eqx.Module):
    """The multiplier itself."""

    lam: PerConstraint


@dataclass(frozen=True)
class ProjectedAscent:
    r"""$\lambda \leftarrow [\lambda + \eta\, e]_+$ with the violation $e = Q_c - h$."""

    rate: float

    def init(self, lam: PerConstraint) -> ProjectedState:
        """Start at `lam`."""
        return ProjectedState(lam)

    def step(self, state: ProjectedState, violation: PerConstraint) -> ProjectedState:
        """One step of projected gradient ascent."""
        return ProjectedState(jnp.maximum(state.lam + self.rate * violation, 0.0))


class LogAdamState(eqx.Module):
    """The logarithm of the multiplier and Adam's moments."""

    log_lam: PerConstraint
    moments: tuple

    @property
    def lam(self) -> PerConstraint:
        """The multiplier, always positive."""
        return jnp.exp(self.log_lam)


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
        log_lam, moments = descend(
            state.log_lam, -state.lam * violation, state.moments, self.rate
        )
        return LogAdamState(log_lam, moments)


class PIDState(eqx.Module):
    """The multiplier, the integral of the error and the last error."""

    lam: PerConstraint
    integral: PerConstraint
    previous: PerConstraint


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


Dual = ProjectedAscent | LogAdam | PID
DualState = ProjectedState | LogAdamState | PIDState


def dual_rule(name: DualName, rate: float, pid: tuple[float, float, float]) -> Dual:
    """The rule of that name: `rate` serves the first two, the gains `pid` the third."""
    if name == "projected":
        return ProjectedAscent(rate)
    if name == "log-adam":
        return LogAdam(rate)
    return PID(*pid)
