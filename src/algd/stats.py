"""Statistics of episodes and runs, on SciPy."""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from algd.evaluation import Episodes
from algd.types import EnvSpec

Sample = Float[np.ndarray, " n"]


def iqm(values: Sample) -> float:
    """Interquartile mean: the mean of the middle half."""
    return float(stats.trim_mean(values, 0.25))


def standard_error(values: Sample) -> float:
    """Of the mean; NaN for a single value."""
    return float(stats.sem(values)) if len(values) > 1 else float("nan")


def cvar(values: Sample, level: float) -> float:
    """Mean of the worst (largest) share 1 - level, the boundary value counted by its part."""
    worst = np.sort(values)[::-1]
    share = (1.0 - level) * len(worst)
    weights = np.clip(share - np.arange(len(worst)), 0.0, 1.0)
    return float(weights @ worst / weights.sum())


def summarise(episodes: Episodes, spec: EnvSpec) -> dict[str, Any]:
    """One object for a set of evaluation episodes: return, and cost against each budget."""
    costs = {}
    for i, budget in enumerate(spec.budgets):
        cost = episodes.cost[:, i]
        costs[budget.name] = {
            "mean": float(cost.mean()),
            "standard_error": standard_error(cost),
            "iqm": iqm(cost),
            "cvar_0.9": cvar(cost, 0.9),
            "budget": budget.limit,
            "unit": "discounted sum" if budget.discounted else "sum per episode",
            "violation_rate": float((cost > budget.limit).mean()),
        }
    return {
        "episodes": len(episodes.returns),
        "return": {
            "mean": float(episodes.returns.mean()),
            "standard_error": standard_error(episodes.returns),
            "iqm": iqm(episodes.returns),
        },
        # With one budget its numbers stand directly under "cost".
        "cost": next(iter(costs.values())) if len(costs) == 1 else costs,
    }
