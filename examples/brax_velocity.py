"""Speed limits on Brax's bodies, trained on the device: pip install 'algd[brax]'.

These are not the velocity tasks of this library, `HopperVelocityIndicator` and the like: Brax has
other bodies, other physics and other rewards, and results on the two cannot be compared.

python examples/brax_velocity.py [BODY] [STEPS] [DIRECTORY]
algd train --env brax_velocity:hopper_on_brax --envs 64        (in this folder)
"""

# pyright: reportMissingImports=false

import sys

from brax.envs import get_environment

import algd
from algd.envs.brax_env import BraxEnv

BUDGETS = (algd.Budget(25.0, name="speeding"),)


def half_cheetah_on_brax() -> BraxEnv:
    """Each step faster than 3.2096 costs 1."""
    return BraxEnv(
        get_environment("halfcheetah"), BUDGETS, cost=lambda s: s.metrics["x_velocity"] > 3.2096
    )


def hopper_on_brax() -> BraxEnv:
    """Each step faster than 0.7402 costs 1."""
    return BraxEnv(
        get_environment("hopper"), BUDGETS, cost=lambda s: s.metrics["x_velocity"] > 0.7402
    )


def ant_on_brax() -> BraxEnv:
    """Each step faster than 2.6222 costs 1; sideways is free here."""
    return BraxEnv(get_environment("ant"), BUDGETS, cost=lambda s: s.metrics["x_velocity"] > 2.6222)


def humanoid_on_brax() -> BraxEnv:
    """Each step faster than 1.4149 costs 1; sideways is free here."""
    return BraxEnv(
        get_environment("humanoid"), BUDGETS, cost=lambda s: s.metrics["x_velocity"] > 1.4149
    )


def main(body: str = "hopper", steps: int = 1_000_000, directory: str = "runs/brax") -> None:
    """Train PPO+Lag on 64 copies."""
    run = algd.train(
        f"brax_velocity:{body}_on_brax", "ppo-lag", steps=steps, envs=64, out=directory
    )
    print(run.rows("eval")[-1])


if __name__ == "__main__":
    words = sys.argv[1:]
    main(*words[:1], *map(int, words[1:2]), *words[2:])
