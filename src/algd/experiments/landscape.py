"""Energy surfaces over the two wheel commands of the differential-drive robot, and their curvature.

The paper's first figure, measured: the plain and the augmented Lagrangian of the same trained
critics, at states in front of a hazard.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from scipy.ndimage import gaussian_filter

from algd import api, envs
from algd.algorithms.algd import ALGD, State
from algd.envs.diff_drive import CENTRE_HAZARD, RING_RADIUS
from algd.evaluation.acting import act
from algd.evaluation.policy import Policy, load
from algd.evaluation.stats import bootstrap_interval
from algd.experiments.scale import Scale
from algd.objectives.critic_learning import dimensionless, standardised
from algd.objectives.lagrangians import energy_of
from algd.objectives.td_targets import clipped_value, pessimistic_cost
from algd.runs.config import parse_config
from algd.runs.directory import Run
from algd.sweeps.results import write_csv
from algd.training.loop import Progress
from algd.types import UserError
from algd.visualization import landscapes

# Its energies are the paper's, in fixed units and with the whole square.
PRESET = "algd-plain"
# The reward critic is piecewise linear: its curvature lies in its kinks. What is measured is the
# curvature of the energy smoothed by a Gaussian as wide as the sampler's finest noise.
SMOOTHING = 0.07
TRUNCATE = 3.0
# What the smoothing needs beyond the box, and two cells more for the differences.
REACH = (TRUNCATE + 1.0) * SMOOTHING
RHOS = (0.1, 0.3, 1.0, 3.0, 10.0)
# Near the boundary: the cost within this share of the limit.
NEAR = 0.05
# Less curvature than this changes the energy over the whole box by less than a fifth of its
# temperature; the flat pieces of a piecewise linear critic count as convex.
FLAT = -0.01
STATES: dict[Scale, int] = {"smoke": 4, "cpu": 32, "paper": 200}
CELLS: dict[Scale, int] = {"smoke": 97, "cpu": 129, "paper": 257}
SMOKE = {
    "steps": 160,
    "budget": 0.1,
    "prefill": 60,
    "critic_hidden": 16,
    "score_hidden": 16,
    "batch_size": 16,
    "updates_per_step": 0.1,
    "eval_every": 160,
    "eval_episodes": 1,
}


class Surface(NamedTuple):
    """The critics over a square grid of actions that reaches `REACH` beyond the box [-1, 1]²."""

    side: Float[np.ndarray, " cells"]
    q: Float[np.ndarray, "cells cells"]
    qc: Float[np.ndarray, "cells cells"]

    @property
    def inside(self) -> Bool[np.ndarray, "cells cells"]:
        """Which cells belong to the action box."""
        within = np.abs(self.side) <= 1.0 + 1e-9
        return within[:, None] & within

    def safe_share(self, limit: float) -> float:
        """The share of the box where the critics expect to keep the limit."""
        return float((self.qc <= limit)[self.inside].mean())


def reproduce(scale: Scale, out: Path, run: Path | None = None) -> None:
    """Write landscape.csv, landscape.md and two pictures into `out`.

    The critics are those of `run`, or of a run in `out` which is trained if it is not there.
    """
    out.mkdir(parents=True, exist_ok=True)
    directory = run if run is not None else default_run(scale, out)
    policy, algorithm = load_diff_drive(directory)
    observations = states_before_hazard(STATES[scale])
    side = np.linspace(-1.0 - REACH, 1.0 + REACH, CELLS[scale])
    print(f"landscape: {len(observations)} states, {len(side)} x {len(side)} actions", flush=True)
    found = [surface(algorithm, policy.state, obs, side) for obs in observations]
    lam = float(policy.state.dual.lam[0])
    limit = float(dimensionless(algorithm, policy.state)[2][0])
    rows = curvature_rows(found, (lam, 1.0), limit)
    summary = summarise_curvature(rows)
    write_csv(rows, out / "landscape.csv")
    (out / "landscape.md").write_text(as_table(summary), encoding="utf-8")
    chosen = min(range(len(found)), key=lambda i: abs(found[i].safe_share(limit) - 0.5))
    shown = {
        f"plain Lagrangian, λ = {lam:.2g} (as trained)": (lam, limit, 0.0),
        "plain Lagrangian, λ = 1": (1.0, limit, 0.0),
        f"augmented Lagrangian, λ = {lam:.2g}, ρ = {algorithm.rho:g}": (lam, limit, algorithm.rho),
    }
    panels = {title: energy_over(found[chosen], *terms) for title, terms in shown.items()}
    draws = drawn_actions(policy, observations[chosen], 200)
    landscapes.draw_landscape(side, found[chosen].qc, panels, limit, draws, out / "landscape.png")
    landscapes.draw_curvature(summary, out / "landscape_curvature.png")
    print(f"landscape: wrote {out / 'landscape.md'}", flush=True)


# --- the run ----------------------------------------------------------------------------------


def default_run(scale: Scale, out: Path) -> Path:
    """The run of `PRESET` in `out`, continued if it was cut short, trained if it is not there."""
    directory = out / "runs" / f"DiffDrive-{PRESET}-{'smoke' if scale == 'smoke' else 'seed0'}"
    if not directory.exists():
        changes = SMOKE if scale == "smoke" else {}
        api.train("DiffDrive", PRESET, out=directory, report=_show, **changes)
        return directory
    run = Run(directory)
    wanted = parse_config(run.config())[0].steps
    if not run.checkpoints() or run.checkpoints()[-1][0] < wanted:
        api.resume(directory, report=_show)
    return directory


def _show(progress: Progress) -> None:
    if progress.step % 2_000 or not progress.step:
        return
    done = progress.step - progress.started_at
    left = (progress.steps - progress.step) * progress.seconds / max(done, 1)
    print(f"landscape: {progress.step:,}/{progress.steps:,} steps, {left:.0f} s left", flush=True)


def load_diff_drive(directory: Path) -> tuple[Policy, ALGD]:
    """The policy of a run of ALGD or LGD on DiffDrive, or a word on why it is not one."""
    settings, algorithm, name = parse_config(Run(directory).config())
    if not isinstance(algorithm, ALGD) or settings.env != "DiffDrive" or settings.env_options:
        raise UserError(
            f"The landscape needs a run of algd or lgd on DiffDrive; {directory} is "
            f"{name} on {settings.env}."
        )
    return load(directory), algorithm


def states_before_hazard(count: int, seed: int = 0) -> Float[np.ndarray, "count obs"]:
    """Robots on their way to a goal right behind the central hazard, 5 to 60 cm before its edge."""
    environments = envs.make("DiffDrive", count)
    environments.reset(seed)
    state = environments.save_state()
    # Between two of the small hazards nothing else is in the way.
    gap = state["hazards"][:, 1] + state["hazards"][:, 2]
    gap /= np.linalg.norm(gap, axis=1, keepdims=True)
    # One step is driven before the robot looks: start as much farther away.
    distance = np.linspace(0.05, 0.6, count) + 0.06
    state["position"] = gap * (CENTRE_HAZARD + distance)[:, None]
    state["heading"] = np.arctan2(-gap[:, 1], -gap[:, 0]) % (2.0 * np.pi)
    state["speed"] = np.tile([0.6, 0.0], (count, 1))
    state["goal"], state["goal_angle"] = -RING_RADIUS * gap, state["heading"]
    state["goal_distance"] = np.linalg.norm(state["goal"] - state["position"], axis=1)
    environments.restore_state(state)
    return np.asarray(environments.step(np.full((count, 2), 0.6, np.float32)).obs)


def drawn_actions(
    policy: Policy, obs: Float[np.ndarray, " obs"], count: int
) -> Float[np.ndarray, "count 2"]:
    """What the policy does at one state."""
    rows = jnp.broadcast_to(jnp.asarray(obs), (count, len(obs)))
    key = jax.random.key(0)
    return np.asarray(act(policy.algorithm, policy.state, rows, key, "sampled")[0])


# --- surfaces ---------------------------------------------------------------------------------


def surface(
    algorithm: ALGD, state: State, obs: Float[np.ndarray, " obs"], side: np.ndarray
) -> Surface:
    """The critics as the energy sees them, over all pairs of actions."""
    grid = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    actions = jnp.asarray(grid, jnp.float32)
    q, qc = _critics(algorithm, state, jnp.asarray(obs), actions)
    shape = (len(side), len(side))
    return Surface(side, *(np.asarray(x, np.float64).reshape(shape) for x in (q, qc)))


@partial(jax.jit, static_argnames=("algorithm",))
def _critics(
    algorithm: ALGD, state: State, obs: Float[Array, " obs"], actions: Float[Array, "actions 2"]
) -> tuple[Float[Array, " actions"], Float[Array, " actions"]]:
    rows = jnp.broadcast_to(standardised(state, obs), (len(actions), len(obs)))
    q, qc, _ = dimensionless(algorithm, state)
    costs = pessimistic_cost(qc(rows, actions)[..., 0], algorithm.cost_spread)
    return clipped_value(q(rows, actions)[..., 0]), costs


def energy_over(
    found: Surface, lam: float, limit: float, rho: float
) -> Float[np.ndarray, "cells cells"]:
    """L_A over the grid, or L where rho is zero."""
    name = "augmented" if rho else "plain"
    with jax.enable_x64(True):
        constants = jnp.asarray([lam]), jnp.asarray([limit]), rho
        each = jax.vmap(jax.vmap(lambda q, qc: energy_of(name, q, qc[None], *constants)))
        return np.asarray(each(jnp.asarray(found.q), jnp.asarray(found.qc)))


# --- curvature --------------------------------------------------------------------------------


def smallest_curvature(
    energy: Float[np.ndarray, "cells cells"], spacing: float
) -> Float[np.ndarray, "cells cells"]:
    """The smaller eigenvalue of the smoothed energy's Hessian."""
    smooth: Any = gaussian_filter(energy, SMOOTHING / spacing, truncate=TRUNCATE)
    # Differences of the smoothed energy are exact on quadratics; filters with the Gaussian's
    # derivatives are not, for a cut second derivative lets the energy's own height through.
    along_first, along_second = np.gradient(smooth, spacing)
    first, mixed = np.gradient(along_first, spacing)
    second = np.gradient(along_second, spacing, axis=1)
    return (first + second) / 2.0 - np.hypot((first - second) / 2.0, mixed)


def curvature_rows(
    found: list[Surface], lams: tuple[float, ...], limit: float
) -> list[dict[str, Any]]:
    """One row per state, multiplier and energy; what is asked near the boundary is NaN without."""
    rows = []
    for number, one in enumerate(found):
        near = one.inside & (np.abs(one.qc - limit) <= NEAR * limit)
        spacing = float(one.side[1] - one.side[0])
        for lam in lams:
            for rho in (0.0, *RHOS):
                smallest = smallest_curvature(energy_over(one, lam, limit, rho), spacing)
                at_boundary = smallest[near] if near.any() else np.array([np.nan])
                convex = at_boundary >= FLAT if near.any() else np.array([np.nan])
                rows.append(
                    {
                        "state": number,
                        "lam": lam,
                        "energy": "augmented" if rho else "plain",
                        "rho": rho,
                        "safe_share": one.safe_share(limit),
                        "convex_share": float((smallest[one.inside] >= FLAT).mean()),
                        "smallest": float(smallest[one.inside].min()),
                        "boundary_convex_share": float(convex.mean()),
                        "boundary_smallest": float(at_boundary.min()),
                        "boundary_median": float(np.median(at_boundary)),
                    }
                )
    return rows


MEASURES = (
    "convex_share",
    "smallest",
    "boundary_convex_share",
    "boundary_smallest",
    "boundary_median",
)


def summarise_curvature(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over states with 95 % intervals, for each multiplier and energy."""
    summary = []
    for lam, rho in dict.fromkeys((row["lam"], row["rho"]) for row in rows):
        group = [row for row in rows if (row["lam"], row["rho"]) == (lam, rho)]
        line: dict[str, Any] = {"lam": lam, "rho": rho, "energy": group[0]["energy"]}
        for name in MEASURES:
            values = np.array([row[name] for row in group])
            values = values[np.isfinite(values)]
            line[name] = float(values.mean()) if len(values) else float("nan")
            line[f"{name}_interval"] = bootstrap_interval(values)
        line["states"] = len(group)
        line["with_boundary"] = sum(np.isfinite(row["boundary_smallest"]) for row in group)
        summary.append(line)
    return summary


def as_table(summary: list[dict[str, Any]]) -> str:
    """A Markdown table for a reader."""
    states, crossed = summary[0]["states"], summary[0]["with_boundary"]
    lines = [
        f"Means over states with 95 % intervals: all {states} states for the box, the {crossed} of "
        "them whose box the constraint's boundary crosses for the boundary.",
        "",
        "| λ | energy | locally convex, box | locally convex, near the boundary "
        "| smallest eigenvalue, box | smallest, near the boundary | median, near the boundary |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in summary:
        name = "plain L" if row["energy"] == "plain" else f"L_A, ρ = {row['rho']:g}"
        shown = [f"{row['lam']:.2g}", name]
        shown += [_cell(row, n, "%", 100) for n in ("convex_share", "boundary_convex_share")]
        shown += [_cell(row, n) for n in ("smallest", "boundary_smallest", "boundary_median")]
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, Any], name: str, unit: str = "", scale: int = 1) -> str:
    """A mean and its interval, to the hundredth."""
    if np.isnan(row[name]):
        return "–"
    digits = 0 if unit else 2
    mean, low, high = (f"{scale * x:.{digits}f}" for x in (row[name], *row[f"{name}_interval"]))
    return f"{mean}{unit} [{low}, {high}]"
