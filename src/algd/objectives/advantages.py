"""How much better an action was than the policy's average: generalised advantage estimation."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def gae(
    signal: Float[Array, " time"],
    values: Float[Array, " time"],
    next_values: Float[Array, " time"],
    terminated: Bool[Array, " time"],
    truncated: Bool[Array, " time"],
    discount: float,
    decay: float,
) -> Float[Array, " time"]:
    r"""$A_t = \delta_t + \gamma\lambda A_{t+1}$, $\delta_t = r_t + \gamma V(s_{t+1}) - V(s_t)$.

    One copy's steps in order; `next_values` belong to where each step led. A termination has no
    future, so V(s_{t+1}) = 0 there; a truncation bootstraps; neither carries on the sum, because
    the next row belongs to another episode. `signal` is the reward or one cost.
    """
    keep = 1.0 - terminated.astype(signal.dtype)
    same_episode = 1.0 - (terminated | truncated).astype(signal.dtype)
    deltas = signal + discount * keep * next_values - values

    def step(later: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, goes_on = row
        advantage = delta + discount * decay * goes_on * later
        return advantage, advantage

    start = jnp.zeros((), signal.dtype)
    return jax.lax.scan(step, start, (deltas, same_episode), reverse=True)[1]
