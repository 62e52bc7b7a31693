"""Pictures of energies and of the theory's checks, with the look of the learning curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from algd.visualization.curves import INK, STYLES, finish, legend_columns

COLORS = tuple(style.color for style in STYLES)


def draw_rates(
    counts: Sequence[int],
    errors: Mapping[str, np.ndarray],
    field_kl: Mapping[str, np.ndarray],
    gaps: Mapping[str, np.ndarray],
    path: Path,
) -> None:
    """The rates of the lemma, Theorem 2 and the corollary, with the slope each claims."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    _rate(left, counts, errors["rms"], COLORS[0], "RMS error", -0.5, "$N^{-1/2}$")
    left.set_title("Monte Carlo score (lemma)", fontsize=10)
    finish(left, "error of the score")
    _rate(middle, counts, field_kl["path"], COLORS[0], "of whole chains", -1.0, "$N^{-1}$")
    _rate(middle, counts, field_kl["end"], COLORS[1], "of the actions", -1.0, None)
    middle.set_title("Monte Carlo term (Theorem 2)", fontsize=10)
    finish(middle, "KL divergence")
    for axes in (left, middle):
        axes.set_xlabel("Monte Carlo samples N")
        axes.set_xticks(list(counts), [str(n) for n in counts], fontsize=8)
        axes.xaxis.set_minor_formatter(NullFormatter())
    beta = gaps["beta"]
    for column, color, label in ((0, COLORS[0], "squared score gap"), (1, COLORS[1], "KL")):
        right.loglog(beta, gaps["by_beta"][:, column], "o-", color=color, ms=4, label=label)
    right.loglog(beta, gaps["by_beta"][:, 2], color=INK, ls="--", lw=1.1, label="bound on the gap")
    right.set_xlabel("temperature β")
    right.set_title("perturbed energy, ε = 0.001 (corollary)", fontsize=10)
    finish(right, "discrepancy")
    for axes in (left, middle, right):
        _legend_below(axes)
    _save(figure, path)


def _rate(
    axes: Axes,
    counts: Sequence[int],
    values: Float[np.ndarray, "batches counts"],
    color: str,
    label: str,
    slope: float,
    slope_label: str | None,
) -> None:
    """Measured means with their standard errors, and the claimed slope through the last of them."""
    means = values.mean(axis=0)
    spread = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    axes.errorbar(counts, means, 1.96 * spread, fmt="o", color=color, ms=4, label=label)
    line = means[-1] * (np.asarray(counts) / counts[-1]) ** slope
    axes.loglog(counts, line, color=INK, ls="--", lw=1.1, label=slope_label)


def draw_fidelity(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Distance of each preset's draws from the Boltzmann density over the number of steps."""
    betas = list(dict.fromkeys(row["beta"] for row in rows))
    names = list(dict.fromkeys(row["preset"] for row in rows))
    steps = list(dict.fromkeys(row["steps"] for row in rows))
    look = {"figsize": (3.6 * len(betas), 5.6), "layout": "constrained", "squeeze": False}
    figure, panels = plt.subplots(2, len(betas), sharex=True, sharey="row", **look)
    for column, beta in enumerate(betas):
        for row, measure in enumerate(("total_variation", "kl")):
            axes = panels[row, column]
            for name, color in zip(names, (COLORS[1], COLORS[2], COLORS[0]), strict=True):
                own = [r for r in rows if r["preset"] == name and r["beta"] == beta]
                values = [r[measure] for r in own]
                axes.plot(steps, values, "o-", color=color, ms=4, lw=1.6, label=name)
            axes.set_xscale("log")
            # A single number of steps gives no limits by itself.
            axes.set_xlim(min(steps) / 1.3, max(steps) * 1.3)
            axes.set_xticks(steps, [str(s) for s in steps], fontsize=8)
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.axvline(5, color=INK, ls=":", lw=1)
            finish(axes, "")
        panels[0, column].set_title(f"β = {beta:g}", fontsize=10)
        panels[1, column].set_xlabel("denoising steps K")
        panels[1, column].set_yscale("log")
    panels[0, 0].set_ylabel("total variation")
    panels[0, 0].set_ylim(0, 1)
    panels[1, 0].set_ylabel("KL divergence")
    _legend_above(figure, panels[0, 0])
    _save(figure, path)


def draw_invariance(
    points: Float[np.ndarray, " points"], curves: Mapping[str, np.ndarray], path: Path
) -> None:
    """The policies of both energies at the optimal multiplier, and where the energies differ."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    shown = np.abs(points) <= 1.0
    x, safe = points[shown], curves["cost"][shown] <= 0.0
    for axes in (left, right):
        look = {"color": COLORS[2], "alpha": 0.12, "lw": 0, "label": "$Q_c \\leq h$"}
        whole = {"where": safe.tolist(), "transform": axes.get_xaxis_transform()}
        axes.fill_between(x, 0, 1, **whole, **look)
        axes.set_xlabel("action")
    for name, color, label in (
        ("plain", COLORS[1], "$\\pi^* \\propto e^{-L/\\beta}$"),
        ("augmented", COLORS[0], "$\\pi_A^* \\propto e^{-L_A/\\beta}$"),
    ):
        left.plot(x, curves[name][shown], color=color, lw=1.8, label=label)
    finish(left, "density at λ*")
    right.plot(x, curves["gap"][shown], color=INK, lw=1.8, label="$L_A - L$ at λ*")
    right.axhline(0, color=INK, lw=0.8, ls="--")
    finish(right, "energy")
    for axes in (left, right):
        _legend_below(axes)
    _save(figure, path)


def draw_landscape(
    grid: Float[np.ndarray, " cells"],
    costs: Float[np.ndarray, "cells cells"],
    panels: Mapping[str, Float[np.ndarray, "cells cells"]],
    limit: float,
    draws: Float[np.ndarray, "count 2"],
    path: Path,
) -> None:
    """Each energy as a surface and as contours, the safe region outlined, the policy's draws."""
    figure = plt.figure(figsize=(9.6, 3.7 * len(panels)), layout="constrained")
    within = np.abs(grid) <= 1.0 + 1e-9
    side, qc = grid[within], costs[np.ix_(within, within)]
    left, right = np.meshgrid(side, side, indexing="ij")
    for row, (title, whole) in enumerate(panels.items()):
        energy = whole[np.ix_(within, within)]
        solid: Any = figure.add_subplot(len(panels), 2, 2 * row + 1, projection="3d")
        solid.plot_surface(left, right, energy, cmap="viridis", lw=0, rcount=80, ccount=80)
        solid.set_xlabel("left wheel", fontsize=8)
        solid.set_ylabel("right wheel", fontsize=8)
        solid.tick_params(labelsize=7)
        solid.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1))
        solid.view_init(elev=32, azim=-125)
        solid.set_title(title, fontsize=10)
        flat = figure.add_subplot(len(panels), 2, 2 * row + 2)
        filled = flat.contourf(left, right, energy, levels=24, cmap="viridis")
        if qc.min() < limit < qc.max():
            flat.contour(left, right, qc, levels=[limit], colors="white", linewidths=2.2)
            dear = flat.contourf(
                left, right, qc, levels=[limit, np.inf], colors="none", hatches=["//"]
            )
            dear.set_edgecolor("white")
            dear.set_linewidth(0.0)
        flat.scatter(draws[:, 0], draws[:, 1], s=7, color=COLORS[1], lw=0, clip_on=False, zorder=5)
        best = np.unravel_index(energy.argmin(), energy.shape)
        flat.plot(side[best[0]], side[best[1]], "*", color="white", mec=INK, ms=13, clip_on=False)
        flat.set_xlabel("left wheel")
        flat.set_ylabel("right wheel")
        flat.set_aspect("equal")
        figure.colorbar(filled, ax=flat, label="energy", shrink=0.9)
    _save(figure, path)


def draw_curvature(summary: Sequence[Mapping[str, Any]], path: Path) -> None:
    """How convex both energies are over the penalty's strength, on the box and at the boundary."""
    quantities = {
        "convex_share": "share locally convex, action box",
        "boundary_convex_share": "share locally convex, near $Q_c = h$",
        "boundary_median": "median smallest eigenvalue, near $Q_c = h$",
    }
    # Where no box has a boundary there is nothing to say of it.
    shown = [name for name in quantities if any(np.isfinite(row[name]) for row in summary)]
    size = (4 * len(shown), 3.9)
    figure, panels = plt.subplots(1, len(shown), figsize=size, layout="constrained", squeeze=False)
    lams = list(dict.fromkeys(row["lam"] for row in summary))
    for axes, name in zip(panels.flat, shown, strict=True):
        for lam, color in zip(lams, COLORS, strict=False):
            plain, *augmented = [row for row in summary if row["lam"] == lam]
            rhos = [row["rho"] for row in augmented]
            low, high = zip(*(row[f"{name}_interval"] for row in augmented), strict=True)
            values = [row[name] for row in augmented]
            axes.plot(rhos, values, "o-", color=color, ms=4, label=f"$L_A$, λ = {lam:.2g}")
            axes.fill_between(rhos, low, high, color=color, alpha=0.18, lw=0)
            axes.axhline(plain[name], color=color, ls="--", lw=1.2, label=f"$L$, λ = {lam:.2g}")
        axes.set_xscale("log")
        rhos = sorted({row["rho"] for row in summary if row["rho"]})
        axes.set_xticks(rhos, [f"{rho:g}" for rho in rhos])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("penalty ρ")
        finish(axes, quantities[name])
        if name.endswith("share"):
            axes.set_ylim(top=1.01)
        else:
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    _legend_above(figure, panels[0, 0])
    _save(figure, path)


def _legend_above(figure: Figure, axes: Axes) -> None:
    """What the lines of all panels mean, where it hides none of them."""
    handles, labels = axes.get_legend_handles_labels()
    columns = legend_columns(figure.get_figwidth(), labels)
    place = {"loc": "outside upper center", "ncols": columns}
    figure.legend(handles=handles, frameon=False, fontsize=8, **place)


def _legend_below(axes: Axes) -> None:
    """What the lines of one panel mean, where it hides none of them."""
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17), "ncols": 3}
    axes.legend(frameon=False, fontsize=8, **place)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=120)
    plt.close(figure)
