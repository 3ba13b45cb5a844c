"""The paper's figures, redrawn from the numbers it prints: points only, for its lines have no numbers."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from harness.report import numbers
from harness.report.axes import rank_axis
from harness.report.canvas import Picture, draw
from harness.report.palette import MUTED, PAPER, VERMILLION
from harness.spec.claim import Claim


def published_picture(claims: Sequence[Claim], name: str, subject: str) -> Picture | None:
    """Return the published speedups in `claims` (one experiment, one base), None where no number is published."""
    stated = [claim for claim in claims if claim.quantity == "speedup" and claim.value is not None]
    if not stated:
        return None
    return draw(name, f"Published speedup of {subject}", lambda axes: _published(axes, stated))


def published_table(claims: Sequence[Claim]) -> pd.DataFrame:
    """Return the numbers behind a published figure, one row per claim."""
    columns = ("figure", "experiment", "units", "base", "count", "quantity", "value", "kind", "erratum")
    return pd.DataFrame([{column: getattr(claim, column) for column in columns} for claim in claims])


def _published(axes: Axes, claims: Sequence[Claim]) -> None:
    base = claims[0].base
    counts = [base, *(claim.count for claim in claims)]
    logarithmic = rank_axis(axes, counts, f"{claims[0].units.capitalize()}")
    ends = [min(counts), max(counts)]
    axes.plot(
        ends, [end / base for end in ends], color=MUTED.light, linestyle=(0, (5, 3)), linewidth=1.2, label="ideal"
    )
    style = {"linestyle": "none", "color": VERMILLION.light, "markersize": 8.0}
    axes.plot([base], [1], marker="D", markerfacecolor=PAPER.light, label="base, 1 by definition", **style)  # type: ignore[arg-type]
    good = [(claim.count, claim.value) for claim in claims if claim.value is not None and not claim.erratum]
    axes.plot([x for x, _ in good], [y for _, y in good], marker="D", label="published", **style)  # type: ignore[arg-type]
    wrong = [(claim.count, claim.value) for claim in claims if claim.value is not None and claim.erratum]
    if wrong:
        axes.plot(
            [x for x, _ in wrong], [y for _, y in wrong],
            linestyle="none", marker="x", markersize=8, color=MUTED.light, label="erratum",
        )  # fmt: skip
    for claim in claims:
        assert claim.value is not None
        axes.annotate(
            f"{claim.value:g}", (claim.count, claim.value), textcoords="offset points", xytext=(9, -3), fontsize=8.5
        )
    if logarithmic:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_ylabel(f"Speedup over {numbers.plural(base, claims[0].units.removesuffix('s'))}")
