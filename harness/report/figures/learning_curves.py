"""Loss and accuracy against training time and against samples, one line for each layout."""

from collections.abc import Iterator, Mapping

import pandas as pd

from harness.analysis import units
from harness.base.own_matplotlib import Axes, ticker
from harness.report import captions
from harness.report.answer import PageFigure
from harness.report.figures import SweepView, figure
from harness.report.rank_axes import some_of, time_unit
from harness.report.svg import draw, mark

_MOST_LINES = 12
_MOST_MARKERS = 12
_TITLES = {"train_loss": "Training loss", "test_loss": "Test loss", "test_accuracy": "Test accuracy"}
_AGAINST = {"time": "training time (without evaluation)", "samples": "training samples visited"}


@figure("learning")
def curves(view: SweepView) -> Iterator[PageFigure]:
    """Draw the test loss (else the training loss) and the test accuracy, if tested, against time and samples."""
    tested = [name for name in ("test_loss", "test_accuracy") if view.curves[name].notna().any()]
    for column in tested if "test_loss" in tested else ["train_loss", *tested]:
        yield from (_curves(view, column, against) for against in _AGAINST)


def _curves(view: SweepView, column: str, against: str) -> PageFigure:
    curves = some_of(view.curves, _MOST_LINES)
    title = _TITLES[column]
    quantity = column.rpartition("_")[2]
    x = "trained_s" if against == "time" else "rows_seen"
    drawn = captions.drawn(view.curves["layout"].nunique(), _MOST_LINES)
    ranks = curves.drop_duplicates("layout").set_index("layout")["ranks"]
    labels = {str(layout): units.ranks(int(count)) for layout, count in ranks.items()}
    if ranks.duplicated().any():
        labels = dict(view.names)
    return PageFigure(
        picture=draw(
            f"{quantity}-{against}",
            f"{title} of {view.subject} against {_AGAINST[against]}",
            lambda axes: draw_curves(axes, curves, x, column, labels),
            numbers=spoken_ends(curves, column, view.names),
        ),
        title=f"{quantity.capitalize()} against {against}",
        caption=(
            f"{quantity.capitalize()} of {view.subject} against {_AGAINST[against]}, after each epoch: median of the "
            "launches, shaded from the least to the greatest. "
            f"{drawn}{captions.conditions_caption(view.scaling, view.runs, bars=False)}"
        ),
        table=view.curves,
    )


def draw_curves(axes: Axes, curves: pd.DataFrame, x: str, column: str, labels: Mapping[str, str]) -> None:
    """Draw `column` of `curves` (`curve_frame`) against its column `x`, a line for each of the layouts."""
    factor, unit = time_unit(float(curves["trained_s"].max())) if x == "trained_s" else (1.0, "")
    layouts = curves.groupby("layout", sort=False)
    for number, (layout, all_rows) in enumerate(layouts):
        rows = all_rows[all_rows[column].notna()]
        look = mark(number)
        # The first line is the widest: where all ranks learn alike, each still shows below the next.
        nested = 3.0 * (1 - number / len(layouts))
        every = max(1, len(rows) // _MOST_MARKERS)
        places = rows[x] * factor
        axes.fill_between(
            places, rows[f"{column}_low"], rows[f"{column}_high"], color=look.colour, alpha=0.18, linewidth=0
        )
        axes.plot(
            places,
            rows[column],
            color=look.colour,
            marker=look.marker,
            linestyle=look.dashes,
            markersize=4 + nested,
            linewidth=1 + nested / 2,
            markevery=every,
            label=labels[str(layout)],
        )
    axes.set_xlim(left=0)
    axes.set_ylabel(_TITLES[column])
    if column == "test_accuracy":
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    else:
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    if x == "trained_s":
        axes.set_xlabel(f"Training time, without evaluation ({unit})")
    else:
        axes.set_xlabel("Training samples visited, all ranks together")
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))


def spoken_ends(curves: pd.DataFrame, column: str, names: Mapping[str, str]) -> str:
    """Return where the curves end to those who cannot see them."""
    text = units.percent if column == "test_accuracy" else units.significant
    last = curves[curves[column].notna()].drop_duplicates("layout", keep="last")
    return "At the end: " + "; ".join(
        f"{names[str(row['layout'])]} {text(float(row[column]), 2 if column == 'test_accuracy' else 3)} after "
        f"{units.seconds(float(row['trained_s']))} of training"
        for _, row in last.iterrows()
    )
