"""Temporal-difference targets and what is read off an ensemble of critics."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from algd.networks.critics import CriticEnsemble
from algd.types import Assessment, Transition


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


def td_target(
    signal: Float[Array, "*batch"],
    bootstrap: Float[Array, "*batch"],
    discount: float,
    next_value: Float[Array, "*batch"],
) -> Float[Array, "*batch"]:
    r"""$y = r + \gamma\, m\, V(s')$, with the mask m = 0 where the future ends."""
    return signal + discount * bootstrap * next_value


def next_cost(
    qcs: Float[Array, "members batch constraints"], shared: bool, floor: bool
) -> Float[Array, "members batch constraints"]:
    """What the members bootstrap from: their own target copies or the mean of all; `floor` cuts
    it at zero."""
    if shared:
        qcs = jnp.broadcast_to(jnp.mean(qcs, axis=0), qcs.shape)
    return jnp.maximum(qcs, 0.0) if floor else qcs


def cost_targets(
    cost: Float[Array, "batch constraints"],
    bootstrap: Float[Array, " batch"],
    discount: float,
    next_qc: Float[Array, "members batch constraints"],
) -> Float[Array, "members batch constraints"]:
    r"""$y_i = c + \gamma_c\, m\, Q'_{c,i}(s', a')$, one target for each member."""
    return td_target(
        jnp.broadcast_to(cost, next_qc.shape),
        jnp.broadcast_to(bootstrap[:, None], next_qc.shape),
        discount,
        next_qc,
    )


def double_critic_loss(
    q: CriticEnsemble, batch: Transition, target: Float[Array, " batch"]
) -> tuple[tuple[Float[Array, ""], Float[Array, "members batch"]], CriticEnsemble]:
    r"""$\sum_j \mathrm{mean} (Q_j - y)^2$ and the values Q_j, with the loss's gradient."""
    targets = jnp.broadcast_to(target[:, None], (q.members, len(target), 1))
    weight = 1.0 / len(target)
    values, grads = q.regress(batch.obs, batch.action, targets, weight)
    return (weight * jnp.sum((values - targets) ** 2), values[..., 0]), grads


def ensemble_loss(
    qc: CriticEnsemble,
    batch: Transition,
    targets: Float[Array, "members batch outputs"],
) -> tuple[tuple[Float[Array, ""], Float[Array, "members batch outputs"]], CriticEnsemble]:
    r"""$\mathrm{mean}_i\,\mathrm{mean} (Q_{c,i} - y_i)^2$ and the values, with the gradient.

    Summed over constraints, so that a second budget does not slow the first one's critic.
    """
    members, rows, _ = targets.shape
    weight = 1.0 / (members * rows)
    values, grads = qc.regress(batch.obs, batch.action, targets, weight)
    return (weight * jnp.sum((values - targets) ** 2), values), grads


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
    r"""$\min_j Q_j$: the pessimistic value of the double critic."""
    return jnp.min(qs, axis=0)


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


def assessment(
    q: CriticEnsemble,
    qc: CriticEnsemble,
    obs: Float[Array, " obs"],
    action: Float[Array, " action"],
) -> Assessment:
    """The double critic's value of one action; mean and spread of the cost ensemble."""
    values = q(obs[None], action[None])[:, 0, 0]
    costs = qc(obs[None], action[None])[:, 0]
    mean = pessimistic_cost(costs, 0.0)
    return Assessment(clipped_value(values), mean, pessimistic_cost(costs, 1.0) - mean)


def polyak(target: Any, online: Any, rate: float | Float[Array, ""]) -> Any:
    r"""$\theta' \leftarrow (1 - \eta)\,\theta' + \eta\,\theta$."""
    return jax.tree.map(lambda old, new: (1.0 - rate) * old + rate * new, target, online)


def polyak_rate(
    rate: float, rounds: Int[Array, ""], every: int, like: Float[Array, ""]
) -> Float[Array, ""]:
    """`rate` once in so many rounds, zero between."""
    return jnp.where(rounds % every == 0, rate, 0.0).astype(like.dtype)
