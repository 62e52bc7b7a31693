"""Units in which learning measures observations, rewards and costs, from what is replayed.

With them temperature, penalty and dual rate are pure numbers: the same for a robot that earns
thousandths and for one that earns thousands.
"""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from algd.types import Transition

WINDOW = 1_000
"""Minibatches after which older ones begin to be forgotten."""
MEMORY = 20_000
"""Minibatches after which the largest size of a return begins to be forgotten."""
VARIANCE_FLOOR = 1e-3
"""Added to the variance of an observation, so that a sensor that hardly moves is not blown up."""
LEAST_BUDGET = 0.05
"""Below this share of what a cost of usual size in every step would sum up to, a budget is too
small to measure costs by."""


class Units(eqx.Module):
    """Running moments of what was replayed; before the first minibatch everything stays raw, and
    observations always do if they have none."""

    count: Int[Array, ""]
    obs_mean: Float[Array, " obs"] | None
    obs_variance: Float[Array, " obs"] | None
    reward_mean: Float[Array, ""]
    reward_square: Float[Array, ""]
    reward_size: Float[Array, ""]
    cost_square: Float[Array, " constraints"]
    reward_low: Float[Array, ""]
    reward_high: Float[Array, ""]
    cost_high: Float[Array, " constraints"]

    @classmethod
    def create(cls, obs_size: int, constraints: int, standardise: bool = True) -> "Units":
        """Nothing seen."""
        return cls(
            count=jnp.zeros((), jnp.int32),
            obs_mean=jnp.zeros(obs_size) if standardise else None,
            obs_variance=jnp.ones(obs_size) if standardise else None,
            reward_mean=jnp.zeros(()),
            reward_square=jnp.zeros(()),
            reward_size=jnp.zeros(()),
            cost_square=jnp.zeros(constraints),
            reward_low=jnp.zeros(()),
            reward_high=jnp.zeros(()),
            cost_high=jnp.zeros(constraints),
        )

    def observe(self, batch: Transition, discount: float) -> "Units":
        r"""Take in a minibatch: $m \leftarrow m + \eta (\bar x - m)$ with $\eta = 1/\min(n, W)$.

        The variance likewise, with the spread of the means: up to the window these are the moments
        of all minibatches together. The size of a return grows at once and shrinks slowly: on the
        way from losses to gains the mean reward passes zero, where it says nothing of the values
        that critics are about to learn.
        """
        dtype = batch.reward.dtype
        rate = 1.0 / (jnp.minimum(self.count, WINDOW - 1) + 1).astype(dtype)
        toward = lambda old, new: old + rate * (new - old)  # noqa: E731
        obs_mean, obs_variance = self.obs_mean, self.obs_variance
        if obs_mean is not None:
            mean = jnp.mean(batch.obs, axis=0)
            variance = jnp.mean((batch.obs - mean) ** 2, axis=0)
            variance = variance + (1.0 - rate) * (mean - obs_mean) ** 2
            obs_mean, obs_variance = toward(obs_mean, mean), toward(obs_variance, variance)
        reward_mean = toward(self.reward_mean, jnp.mean(batch.reward))
        reward_square = toward(self.reward_square, jnp.mean(batch.reward**2))
        size = return_size(reward_mean, reward_square, discount)
        return Units(
            count=self.count + 1,
            obs_mean=obs_mean,
            obs_variance=obs_variance,
            reward_mean=reward_mean,
            reward_square=reward_square,
            reward_size=jnp.maximum(size, (1.0 - 0.5 / MEMORY) * self.reward_size),
            cost_square=toward(self.cost_square, jnp.mean(batch.cost**2, axis=0)),
            # Never forgotten; zero is what follows an end.
            reward_low=jnp.minimum(self.reward_low, jnp.min(batch.reward)),
            reward_high=jnp.maximum(self.reward_high, jnp.max(batch.reward)),
            cost_high=jnp.maximum(self.cost_high, jnp.max(batch.cost, axis=0)),
        )

    def standardise(self, obs: Float[Array, "*batch obs"]) -> Float[Array, "*batch obs"]:
        """Observations with mean 0 and variance 1, or as they are."""
        if self.obs_mean is None:
            return obs
        return (obs - self.obs_mean) / self.obs_deviation

    @property
    def obs_deviation(self) -> Float[Array, " obs"]:
        """What observations are divided by; one before the first minibatch."""
        assert self.obs_variance is not None
        seen = self.count > 0
        return jnp.sqrt(jnp.where(seen, self.obs_variance + VARIANCE_FLOOR, 1.0))

    @property
    def reward_unit(self) -> Float[Array, ""]:
        """The largest size of a return not yet forgotten; of rewards that are all zero, one."""
        return jnp.where(self.reward_size > 0.0, self.reward_size, 1.0)

    def cost_unit(
        self, limit: Float[Array, " constraints"], discount: float
    ) -> Float[Array, " constraints"]:
        """The limit h on the critics' scale; for a tiny one or none, a share of what a cost of
        usual size in every step sums up to."""
        horizon = 1.0 / (1.0 - discount) if discount < 1.0 else 1.0
        return jnp.maximum(limit, LEAST_BUDGET * horizon * _typical(self.cost_square))

    def measure(
        self,
        batch: Transition,
        reward_unit: Float[Array, ""],
        cost_unit: Float[Array, " constraints"],
    ) -> Transition:
        """The minibatch in these units."""
        ahead = batch.ahead
        if ahead is not None:
            ahead = replace(
                ahead,
                reward=ahead.reward / reward_unit,
                cost=ahead.cost / cost_unit,
                last_cost=ahead.last_cost / cost_unit,
            )
        return replace(
            batch,
            obs=self.standardise(batch.obs),
            next_obs=self.standardise(batch.next_obs),
            reward=batch.reward / reward_unit,
            cost=batch.cost / cost_unit,
            ahead=ahead,
        )


def return_size(
    mean: Float[Array, ""], square: Float[Array, ""], discount: float
) -> Float[Array, ""]:
    r"""$\sqrt{m^2 + \frac{1-\gamma}{1+\gamma} v}$: $(1 - \gamma)$ of a return's typical size.

    Rewards of mean m and variance v, drawn one by one, have returns of the mean $m/(1-\gamma)$ and
    the variance $v/(1-\gamma^2)$.
    """
    share = (1.0 - discount) / (1.0 + discount) if discount < 1.0 else 1.0
    return jnp.sqrt(mean**2 + share * jnp.maximum(square - mean**2, 0.0))


def _typical(square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The root; of nothing but zeros, for which any unit will do, one."""
    return jnp.where(square > 0.0, jnp.sqrt(square), 1.0)
