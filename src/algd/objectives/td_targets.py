"""Temporal-difference targets and what is read off an ensemble of critics."""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from algd.networks.batch_norm import NormalisedEnsemble
from algd.networks.critics import CriticEnsemble
from algd.types import Lookahead, Transition

Critics = CriticEnsemble | NormalisedEnsemble
# Least and largest.
Bounds = tuple[float | Float[Array, "..."], float | Float[Array, "..."]]
UNBOUNDED: Bounds = (-math.inf, math.inf)


def for_ever(low: Float[Array, "*shape"], high: Float[Array, "*shape"], discount: float) -> Bounds:
    r"""$[l, u] / (1 - \gamma)$: no discounted sum of numbers between l and u is outside.

    A critic that learns from its own estimates may believe anything; what it has never been shown
    is cut off.
    """
    if discount == 1.0:
        return UNBOUNDED
    return low / (1.0 - discount), high / (1.0 - discount)


def bootstrap_mask(
    batch: Transition,
    masked: bool = True,
    goal_is_terminal: bool = False,
    timeout_is_terminal: bool = False,
) -> Float[Array, "*batch"]:
    """0 where the future ends with this step, 1 elsewhere; 1 everywhere if not `masked`."""
    ends = batch.terminated
    if goal_is_terminal:
        ends = ends | batch.goal_met
    if timeout_is_terminal:
        ends = ends | batch.truncated
    return 1.0 - ends.astype(batch.reward.dtype) if masked else jnp.ones_like(batch.reward)


def lookahead(batch: Transition, discount: float, cost_discount: float) -> Lookahead:
    """What is known of the future of each row: n steps of it, or the one that it is."""
    if batch.ahead is not None:
        return batch.ahead
    by = [jnp.full_like(batch.reward, each) for each in (discount, cost_discount)]
    return Lookahead(batch.reward, batch.cost, batch.cost, *by)


def td_target(
    signal: Float[Array, "*batch"],
    bootstrap: Float[Array, "*batch"],
    discount: float | Float[Array, "*batch"],
    next_value: Float[Array, "*batch"],
) -> Float[Array, "*batch"]:
    r"""$y = r + \gamma\, m\, V(s')$, with the mask m = 0 where the future ends.

    After n steps r is their discounted sum and $\gamma$ stands for $\gamma^n$.
    """
    return signal + discount * bootstrap * next_value


def next_cost(
    qcs: Float[Array, "members batch constraints"], shared: bool, bounds: Bounds
) -> Float[Array, "members batch constraints"]:
    """What the members bootstrap from: their own target copies or the mean of all, cut at
    `bounds`."""
    if shared:
        qcs = jnp.broadcast_to(jnp.mean(qcs, axis=0), qcs.shape)
    return jnp.clip(qcs, *bounds)


def cost_targets(
    cost: Float[Array, "batch constraints"],
    bootstrap: Float[Array, " batch"],
    discount: float | Float[Array, " batch"],
    next_qc: Float[Array, "members batch constraints"],
    afterwards: Float[Array, "batch constraints"] | float = 0.0,
) -> Float[Array, "members batch constraints"]:
    r"""$y_i = c + \gamma_c (m\, Q'_{c,i}(s', a') + (1 - m)\, z)$, one target for each member; z is
    what comes `afterwards` where the mask m says that the future ends."""
    mask, discount = bootstrap[:, None], jnp.asarray(discount, cost.dtype)[..., None]
    return cost + discount * (mask * next_qc + (1.0 - mask) * afterwards)


class Regression(NamedTuple):
    """One step of temporal-difference learning: the critics (their running statistics a step on,
    if they have any), the gradient by their weights, the loss, and their values of the batch."""

    critics: Critics
    grads: Critics
    loss: Float[Array, ""]
    values: Float[Array, "members batch outputs"]


def td_regression(
    critics: Critics,
    targets: Critics | None,
    batch: Transition,
    next_action: Float[Array, "batch action"],
    bootstrap: Callable[[Float[Array, "members batch outputs"]], Array],
    weight: float,
) -> Regression:
    r"""The gradient of $w \sum (Q_i(s, a) - y_i)^2$ with $y = $ `bootstrap`$(Q'(s', a'))$.

    Q' are the target critics, or without any the critics themselves. Both steps are one batch of
    batch-normalised ones.
    """
    if isinstance(critics, NormalisedEnsemble):
        inputs = jnp.concatenate([batch.obs, batch.action], axis=-1)
        following = jnp.concatenate([batch.next_obs, next_action], axis=-1)
        if isinstance(targets, NormalisedEnsemble):
            ahead = targets.values(inputs, following)[1]
            aims = lambda own: bootstrap(ahead)  # noqa: E731
        else:
            aims = bootstrap
        values, y, grads, moments = critics.regress(inputs, following, aims, weight)
        critics = critics.following(moments)
    else:
        assert isinstance(targets, CriticEnsemble)
        y = bootstrap(targets.values(batch.next_obs, next_action))
        values, grads = critics.regress(batch.obs, batch.action, y, weight)
    return Regression(critics, grads, weight * jnp.sum((values - y) ** 2), values)


def double_q_target(
    signal: Float[Array, " batch"],
    keep: Float[Array, " batch"],
    discount: float | Float[Array, " batch"],
    bonus: Float[Array, " batch"] | float = 0.0,
    bounds: Bounds = UNBOUNDED,
) -> Callable[[Float[Array, "members batch outputs"]], Array]:
    r"""From the members' next values to $y = r + \gamma\, m (\min_j Q'_j + b)$, one for all; Q'
    is cut at `bounds`."""

    def bootstrap(following: Float[Array, "members batch outputs"]) -> Array:
        value = jnp.clip(clipped_value(following[..., 0]), *bounds)
        y = td_target(signal, keep, discount, value + bonus)
        return jnp.broadcast_to(y[:, None], following.shape)

    return bootstrap


def reachability_target(
    margin: Float[Array, "*batch"],
    bootstrap: Float[Array, "*batch"],
    discount: float | Float[Array, ""],
    next_qh: Float[Array, "*batch"],
) -> Float[Array, "*batch"]:
    r"""$y = (1 - \gamma_h) h_s + \gamma_h \max(h_s, Q_h(s', a'))$; $h_s$ where the future ends.

    A contraction by the factor $\gamma_h$; for $\gamma_h \to 1$ its fixed point is the largest
    margin ahead.
    """
    ahead = (1.0 - discount) * margin + discount * jnp.maximum(margin, next_qh)
    return jnp.where(bootstrap > 0.0, ahead, margin)


def clipped_value(qs: Float[Array, "members *batch"]) -> Float[Array, "*batch"]:
    r"""$\min_j Q_j$: the pessimistic value of the double critic.

    Two by two: the gradient of a minimum over an axis divides by the number of equal members, which
    is zero where the compiler computes them a second time to another last bit.
    """
    return reduce(jnp.minimum, qs)


def pessimistic_cost(qcs: Float[Array, "members *batch"], spread: float) -> Float[Array, "*batch"]:
    r"""$\mathrm{mean}_i Q_{c,i} + k\, \mathrm{std}_i Q_{c,i}$, std with M - 1, zero if M = 1."""
    mean = jnp.mean(qcs, axis=0)
    if qcs.shape[0] == 1 or spread == 0.0:
        return mean
    deviations = qcs - mean
    variance = jnp.sum(deviations**2, axis=0) / (qcs.shape[0] - 1)
    # The square root has no gradient at zero, where all members agree.
    positive = variance > 0.0
    std = jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)
    return mean + spread * std


def polyak(target: Any, online: Any, rate: float | Float[Array, ""]) -> Any:
    r"""$\theta' \leftarrow (1 - \eta)\,\theta' + \eta\,\theta$."""
    return jax.tree.map(lambda old, new: (1.0 - rate) * old + rate * new, target, online)
