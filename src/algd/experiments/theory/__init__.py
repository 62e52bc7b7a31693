"""The paper's statements, measured: where they hold, how fast, and where they need a condition.

Each check is one row: the statement, what was measured, the figure, and whether it holds as the
paper writes it. Energies, scores and chains are the library's own; references are quadrature.
"""

from pathlib import Path
from typing import Any

import jax

from algd.experiments.fidelity import fidelity
from algd.experiments.scale import Scale
from algd.experiments.theory.checks import Check, as_table, at_most
from algd.experiments.theory.curvature import curvature_checks
from algd.experiments.theory.gaps import gap_checks, score_gaps
from algd.experiments.theory.invariance import invariance_checks, invariance_curves
from algd.experiments.theory.line import LINE
from algd.experiments.theory.rates import Sizes, kl_of_fields, rate_checks, score_errors
from algd.experiments.theory.scores import score_checks
from algd.sweeps.results import write_csv
from algd.visualization import landscapes

SIZES: dict[Scale, Sizes] = {
    "smoke": Sizes(4, 100, (32, 128, 512), 8, (5,), 20_000),
    "cpu": Sizes(20, 400, (16, 32, 64, 128, 256, 512, 1024), 64, (2, 3, 5, 8, 12, 20, 40), 200_000),
    "paper": Sizes(
        40, 1000, (16, 32, 64, 128, 256, 512, 1024, 2048), 256, (2, 3, 5, 8, 12, 20, 40, 80), 10**6
    ),
}


def reproduce(scale: Scale, out: Path) -> None:
    """Write theory.csv, theory.md, fidelity.csv and three pictures into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    sizes = SIZES[scale]
    checks: list[Check] = []
    with jax.enable_x64(True):
        for part in (score_checks, curvature_checks, invariance_checks):
            _say(part.__name__.replace("_", " "))
            checks += part()
        _say("rates over the number of samples")
        errors = score_errors(sizes)
        field_kl = kl_of_fields(sizes)
        checks += rate_checks(sizes, errors, field_kl)
        _say("score gap of a perturbed energy")
        gaps = score_gaps()
        checks += gap_checks(gaps)
    _say(f"samplers of {max(sizes.steps)} steps and fewer")
    distances = fidelity(sizes.steps, sizes.draws)
    checks += fidelity_checks(distances)
    write_csv([check._asdict() for check in checks], out / "theory.csv")
    write_csv(distances, out / "fidelity.csv")
    landscapes.draw_rates(sizes.samples, errors, field_kl, gaps, out / "theory_rates.png")
    landscapes.draw_fidelity(distances, out / "theory_fidelity.png")
    landscapes.draw_invariance(LINE, invariance_curves(), out / "theory_invariance.png")
    (out / "theory.md").write_text(as_table(checks), encoding="utf-8")
    _say(f"wrote {out / 'theory.md'}")


def _say(what: str) -> None:
    print(f"theory: {what}", flush=True)


def fidelity_checks(rows: list[dict[str, Any]]) -> list[Check]:
    """What is left with the exact score: the part that Theorem 2 does not speak of."""
    checks = []
    for name in ("algd-paper", "algd-code", "algd"):
        of_name = {
            count: [r for r in rows if r["preset"] == name and r["steps"] == count]
            for count in sorted({r["steps"] for r in rows})
        }
        five, most = of_name[5], of_name[max(of_name)]
        checks.append(
            at_most(
                f"Theorem 2 as N → ∞ and L_A = L: the sampler of `{name}` draws from exp(−L/β)",
                "largest KL over β = 0.1, 0.3, 1 with the exact score and K = 5 (total variation "
                f"{max(r['total_variation'] for r in five):.2f}; with K = {max(of_name)} "
                f"{max(r['total_variation'] for r in most):.2f})",
                max(r["kl"] for r in five),
                1e-2,
            )
        )
    return checks
