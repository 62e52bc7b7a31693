"""What happened since the last row of metrics, as sums that a checkpoint can hold."""

from typing import Any

import numpy as np
from jaxtyping import Bool

from algd.evaluation.episodes import Episodes, in_budget_unit, powers
from algd.types import EnvSpec, EnvStep, Metrics


class EpisodeStatistics:
    """Running sums over episodes and updates, as arrays so that a checkpoint can hold them.

    `cost_so_far` is what each copy's episode has cost up to and including the last step, in the
    budgets' units.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, discount: float) -> None:
        constraints = len(spec.budgets)
        self.spec, self.discount = spec, discount
        self.arrays = {
            "return": np.zeros(num_envs),
            "plain": np.zeros((num_envs, constraints)),
            "discounted": np.zeros((num_envs, constraints)),
            "length": np.zeros(num_envs, np.int64),
            "ended": np.zeros(1, np.int64),
            "ended_return": np.zeros(1),
            "ended_length": np.zeros(1),
            "ended_cost": np.zeros(constraints),
            "ended_over": np.zeros(constraints),
            "total_episodes": np.zeros(1, np.int64),
            "total_cost": np.zeros(constraints),
            "total_unsafe_steps": np.zeros(constraints),
            "dropped": np.zeros(1, np.int64),
        }
        self.updates = 0
        self.update_sums: dict[str, np.ndarray] = {}
        self.cost_so_far = np.zeros((num_envs, constraints))

    def count_step(self, result: EnvStep, keep: Bool[np.ndarray, " envs"]) -> None:
        """Take in one vector step; steps that were dropped count as such only."""
        a = self.arrays
        cost = np.where(keep[:, None], result.cost, 0.0)
        a["return"] += np.where(keep, result.reward, 0.0)
        a["plain"] += cost
        a["discounted"] += powers(self.discount, a["length"])[:, None] * cost
        a["length"] += 1
        a["total_cost"] += cost.sum(axis=0)
        a["total_unsafe_steps"] += (cost > 0).sum(axis=0)
        a["dropped"] += (~keep).sum()
        self.cost_so_far = in_budget_unit(a["plain"], a["discounted"], self.spec)
        ends = result.terminated | result.truncated
        if ends.any():
            costs = self.cost_so_far[ends]
            limits = np.array([b.limit for b in self.spec.budgets])
            a["ended"] += ends.sum()
            a["total_episodes"] += ends.sum()
            a["ended_return"] += a["return"][ends].sum()
            a["ended_length"] += a["length"][ends].sum()
            a["ended_cost"] += costs.sum(axis=0)
            a["ended_over"] += (costs > limits).sum(axis=0)
            self.forget_episodes(ends)

    def forget_episodes(self, where: Bool[np.ndarray, " envs"] | slice = slice(None)) -> None:
        """Start the sums of running episodes anew."""
        for name in ("return", "plain", "discounted", "length"):
            self.arrays[name][where] = 0

    def count_update(self, metrics: Metrics) -> None:
        """Take in the means of one call's gradient rounds."""
        for name, value in metrics.items():
            self.update_sums[name] = self.update_sums.get(name, 0.0) + np.asarray(value, np.float64)
        self.updates += 1

    def take_row(self) -> dict[str, Any]:
        """The row since the last one, and start anew."""
        a, names = self.arrays, [b.name for b in self.spec.budgets]
        row: dict[str, Any] = {"episodes": int(a["total_episodes"][0])}
        count = int(a["ended"][0])
        if count:
            row |= {
                "return": float(a["ended_return"][0] / count),
                "length": float(a["ended_length"][0] / count),
            }
            row |= by_constraint("cost", a["ended_cost"] / count, names)
            row |= by_constraint("violation_rate", a["ended_over"] / count, names)
        row |= by_constraint("total_cost", a["total_cost"], names)
        row |= by_constraint("total_unsafe_steps", a["total_unsafe_steps"], names)
        if a["dropped"][0]:
            row["dropped_steps"] = int(a["dropped"][0])
        for name, total in self.update_sums.items():
            row |= by_constraint(name, total / self.updates, names)
        for name in ("ended", "ended_return", "ended_length", "ended_cost", "ended_over"):
            a[name][:] = 0
        self.updates, self.update_sums = 0, {}
        return row

    def save(self) -> dict[str, np.ndarray]:
        """All sums by name."""
        sums = {f"tally/update/{name}": value for name, value in self.update_sums.items()}
        own = {f"tally/own/{name}": value for name, value in self.arrays.items()}
        return {**own, **sums, "tally/updates": np.array(self.updates)}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Continue with saved sums."""
        for name in self.arrays:
            self.arrays[name] = np.array(arrays[f"tally/own/{name}"])
        prefix = "tally/update/"
        self.update_sums = {
            name.removeprefix(prefix): np.array(value)
            for name, value in arrays.items()
            if name.startswith(prefix)
        }
        self.updates = int(arrays["tally/updates"])


def by_constraint(name: str, values: Any, constraints: list[str]) -> dict[str, float]:
    """`{name: value}` for one number, `{name/constraint: value}` for one per constraint."""
    values = np.asarray(values)
    if values.ndim == 0 or len(constraints) == 1:
        return {name: float(values.reshape(-1)[0])}
    return {f"{name}/{c}": float(v) for c, v in zip(constraints, values, strict=True)}


def evaluation_row(episodes: Episodes, spec: EnvSpec) -> dict[str, Any]:
    """Means over the episodes of one evaluation, and how the critics' forecast compares."""
    names = [b.name for b in spec.budgets]
    limits = np.array([b.limit for b in spec.budgets])
    row = {
        "return": float(episodes.returns.mean()),
        "return_std": float(episodes.returns.std()),
        "length": float(episodes.length.mean()),
    }
    row |= by_constraint("cost", episodes.cost.mean(axis=0), names)
    row |= by_constraint("cost_std", episodes.cost.std(axis=0), names)
    row |= by_constraint("violation_rate", (episodes.cost > limits).mean(axis=0), names)
    if np.isfinite(episodes.expected_cost).all():
        # Not every algorithm has a critic of the cost.
        row |= by_constraint("expected_cost", episodes.expected_cost.mean(axis=0), names)
    row |= by_constraint("discounted_cost", episodes.discounted_cost.mean(axis=0), names)
    return row
