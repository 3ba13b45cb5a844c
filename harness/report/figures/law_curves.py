"""Fitted laws beside the measured points: curves with bands, and no curve where none is known."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from harness.analysis import numbers
from harness.analysis.laws import Fit
from harness.analysis.scaling import Scaling
from harness.prediction.forecast import NetworkReference
from harness.report import captions
from harness.report.answer import FigureBlock
from harness.report.axes import medians, rank_axis
from harness.report.captions import speedup_label
from harness.report.figures import SweepView, figure
from harness.report.svg import MUTED, PURPLE, draw, mark

_FIRST_MARK = 1  # mark 0 is the colour of what was measured


@figure("laws")
def laws(view: SweepView) -> FigureBlock | None:
    """Draw the fits and the reference beside the measured points, None where no law has a curve."""
    fits, scaling, reference = [fit for fit in view.fits if fit.counts], view.scaling, view.reference
    if not fits:
        return None
    beyond = (
        "A law that what was measured refutes, or cannot test, ends at the last measured count; beyond it a curve is "
        "true if the law holds, and bands are those of all laws together."
    )
    bands = "Shaded: 95 % bands by profile likelihood." if any(fit.low for fit in fits) else "No bands."
    limit = "Dotted: the reference by the probed network, no bound. " if reference else ""
    caption = (
        f"{speedup_label(scaling)} of {view.subject} over {numbers.ranks(scaling.base.ranks)}: fitted "
        f"laws (lines, not measured), and the medians. {bands} {beyond} "
        f"{limit}{captions.conditions(scaling, view.runs)}"
    )
    title = f"Laws fitted to the speedup of {view.subject}"
    picture = draw("laws", title, lambda axes: _laws(axes, scaling, fits, reference), numbers=_spoken(fits))
    return FigureBlock(picture=picture, title="Fitted laws", caption=caption, table=law_table(fits, reference))


def _spoken(fits: Sequence[Fit]) -> str:
    """Return where the laws' curves end to those who cannot see them."""
    ends = (f"{fit.law} {fit.speedup[-1]:.2f} at {numbers.ranks(round(fit.counts[-1]))}" for fit in fits)
    return "Speedups at the end of the curves: " + "; ".join(ends)


def law_table(fits: Sequence[Fit], reference: NetworkReference | None) -> pd.DataFrame:
    """Return the curves behind the figure: law (or reference), ranks, speedup, low and high (NaN without a band)."""
    frames = []
    for fit in fits:
        rows = {"law": fit.law, "ranks": fit.counts, "speedup": fit.speedup}
        frames.append(pd.DataFrame(rows).assign(low=fit.low or None, high=fit.high or None))
    if reference:
        limits = {
            "ranks": [one.point.ranks for one in reference.points],
            "speedup": [one.speedup for one in reference.points],
        }
        frames.append(pd.DataFrame(limits).assign(law="reference"))
    return pd.concat(frames)


def _laws(axes: Axes, scaling: Scaling, fits: Sequence[Fit], reference: NetworkReference | None) -> None:
    last = max(count for fit in fits for count in fit.counts)
    ranks = [point.ranks for point in scaling.points]
    logarithmic = rank_axis(axes, ranks)
    left = axes.get_xlim()[0]
    if last > max(ranks):
        axes.set_xlim(left, last * 1.3 if logarithmic else last + max(ranks) * 0.1)
        axes.axvline(max(ranks), color=MUTED.light, linewidth=0.8, linestyle=(0, (1, 2)))
        axes.annotate(
            "measured up to here", (max(ranks), 0.02), xycoords=("data", "axes fraction"), rotation=90,
            fontsize=7.5, ha="right", va="bottom", color=MUTED.light,
        )  # fmt: skip
    axes.plot(
        [min(ranks), last], [end / scaling.base.ranks for end in (min(ranks), last)], label="ideal",
        color=MUTED.light, linestyle=(0, (5, 3)), linewidth=1.2, zorder=1,
    )  # fmt: skip
    for number, fit in enumerate(fits, start=_FIRST_MARK):
        look = mark(number)
        if fit.low:
            axes.fill_between(fit.counts, fit.low, fit.high, color=look.colour, alpha=0.18, linewidth=0)
        axes.plot(fit.counts, fit.speedup, color=look.colour, linestyle="-" if number == 1 else "--", label=fit.law)
    if reference:
        x, y = [one.point.ranks for one in reference.points], [one.speedup for one in reference.points]
        axes.plot(x, y, color=PURPLE.light, linestyle=(0, (1, 1.5)), marker="_", label="reference")
    medians(axes, scaling.points, lambda p: p.speedup, lambda p: p.speedup_interval, "measured", joined=False)
    if logarithmic:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(bottom=0)
    axes.set_ylabel(f"{speedup_label(scaling)} over {numbers.ranks(scaling.base.ranks)}")
