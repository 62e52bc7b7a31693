"""A trained policy, loaded from a run, ready to act."""

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algd.evaluation import act
from algd.runs import DamagedFile, Run, from_arrays
from algd.settings import restored
from algd.types import Budget, EnvSpec, Mode, UserError


class Policy:
    """Acts like the run's newest checkpoint.

    The random numbers of sampled actions follow from `seed` and the number of calls so far.
    """

    def __init__(self, algorithm: Any, state: Any, spec: EnvSpec, seed: int = 0) -> None:
        self.algorithm, self.state, self.spec = algorithm, state, spec
        self._key = jax.random.key(seed)
        self._calls = 0

    def predict(self, obs: Any, deterministic: bool = True) -> np.ndarray:
        """The action for one observation, or a row of actions for a batch of them."""
        array = np.asarray(obs, np.float32)
        if array.ndim not in (1, 2) or array.shape[-1] != self.spec.obs_size:
            raise UserError(
                f"An observation has {self.spec.obs_size} numbers, a batch the shape "
                f"[n, {self.spec.obs_size}]; this one has the shape {list(array.shape)}."
            )
        mode: Mode = "deterministic" if deterministic else "sampled"
        key = jax.random.fold_in(self._key, self._calls)
        self._calls += 1
        rows = jnp.asarray(np.atleast_2d(array))
        actions = np.asarray(act(self.algorithm, self.state, rows, key, mode)[0])
        return actions if array.ndim == 2 else actions[0]


def spec_from_state(config: dict[str, Any], arrays: dict[str, np.ndarray]) -> EnvSpec:
    """The spaces and budgets of a run, without making its environment."""
    budgets = tuple(Budget(**budget) for budget in config["budgets"])
    low, high = arrays["state.low"], arrays["state.high"]
    obs_size = arrays["obs"].shape[1]
    return EnvSpec(
        obs_size,
        tuple(float(x) for x in low),
        tuple(float(x) for x in high),
        budgets,
        config["horizon"],
    )


def load(directory: str | Path, seed: int = 0) -> Policy:
    """The policy of a run's newest whole checkpoint."""
    run = Run(Path(directory))
    config = run.config()
    _, algorithm, _ = restored(config)
    step, arrays, complaints = run.newest_checkpoint()
    for complaint in complaints:
        warnings.warn(f"{complaint}; the policy is that of step {step}.", stacklevel=2)
    try:
        spec = spec_from_state(config, arrays)
        template = jax.eval_shape(lambda: algorithm.init(spec, jax.random.key(0)))
        return Policy(algorithm, from_arrays(template, arrays, "state"), spec, seed)
    except (DamagedFile, KeyError) as error:
        raise UserError(f"{directory} cannot be loaded: {error}.") from error
