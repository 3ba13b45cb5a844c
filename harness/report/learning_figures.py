"""Loss and accuracy against training time and against samples, one line for each layout."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter

from harness.analysis import numbers
from harness.report.axes import some_of
from harness.report.scaling_figures import time_unit
from harness.report.svg import Picture, draw, mark

MOST_LINES = 12
_MOST_MARKERS = 12


def learning_pictures(curves: pd.DataFrame, subject: str) -> tuple[Picture, ...]:
    """Return the pictures of `analysis.learning.curve_frame`'s rows.

    `loss-time`, `loss-samples`, and where accuracy was measured `accuracy-time`, `accuracy-samples`; at most
    `MOST_LINES` layouts are drawn.
    """
    pictures = []
    curves = some_of(curves, MOST_LINES)
    for quantity, column, title in _quantities(curves):
        for against, x, words in (("time", "trained_s", "training time"), ("samples", "rows_seen", "samples")):
            picture = draw(
                f"{quantity}-{against}",
                f"{title} of {subject} against {words}",
                lambda axes, column=column, title=title, x=x: _curves(axes, curves, x, column, title),  # type: ignore[misc]
            )
            pictures.append(picture)
    return tuple(pictures)


def _quantities(curves: pd.DataFrame) -> list[tuple[str, str, str]]:
    tested = curves["test_loss"].notna().any()
    found = [("loss", "test_loss", "Test loss") if tested else ("loss", "train_loss", "Training loss")]
    if curves["test_accuracy"].notna().any():
        found.append(("accuracy", "test_accuracy", "Test accuracy"))
    return found


def _curves(axes: Axes, curves: pd.DataFrame, x: str, column: str, title: str) -> None:
    factor, unit = time_unit(float(curves["trained_s"].max())) if x == "trained_s" else (1.0, "")
    twice = curves.drop_duplicates("layout")["ranks"].duplicated().any()
    layouts = curves.groupby("layout", sort=False)
    for number, (layout, all_rows) in enumerate(layouts):
        rows = all_rows[all_rows[column].notna()]
        look = mark(number)
        # The first line is the widest: where all ranks learn alike, each still shows below the next.
        nested = 3.0 * (1 - number / len(layouts))
        label = str(layout) if twice else numbers.ranks(int(all_rows["ranks"].iloc[0]))
        every = max(1, len(rows) // _MOST_MARKERS)
        places = rows[x] * factor
        axes.fill_between(
            places, rows[f"{column}_low"], rows[f"{column}_high"], color=look.colour, alpha=0.18, linewidth=0
        )
        axes.plot(
            places, rows[column], color=look.colour, marker=look.marker, linestyle=look.dashes,
            markersize=4 + nested, linewidth=1 + nested / 2, markevery=every, label=label,
        )  # fmt: skip
    axes.set_xlim(left=0)
    axes.set_ylabel(title)
    if column == "test_accuracy":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if x == "trained_s":
        axes.set_xlabel(f"Training time, without evaluation ({unit})")
    else:
        axes.set_xlabel("Training rows visited, all ranks together")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
