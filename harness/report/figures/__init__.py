"""The figures of a sweep's report. To add one, put a file here with a function marked `figure`; that is all."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pandas as pd

from harness.analysis.accuracy_times import TimeToAccuracy
from harness.analysis.scaling import Scaling
from harness.analysis.scaling_laws import Fit
from harness.prediction.extrapolation import Extrapolation
from harness.prediction.network_reference import NetworkReference
from harness.report.answer import FigureBlock
from harness.schema.record import RunRecord
from harness.why.overheads import PointOverheads

SECTIONS = ("scaling", "time", "laws", "learning")
"""The parts of the page that hold figures, in its order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepView:
    """What a figure may draw: the numbers of one sweep, which has a valid launch.

    `folder` has the records. `runs` and `launches` (`frames.launch_frame`) are of all launches, `ratios`
    (`scaling.ratios_frame`) of the valid ones; `parts` is `time_parts.breakdown_frame`, `curves` is
    `frames.curve_frame` and `final` its `final_frame`, `beyond` what is predicted of more ranks. `costs` are
    `overheads` by part of the time. `goal` is a test accuracy, None where none was tested, and `targets` the times to
    it. `subject` names the workload, `names` has a reader's words for every layout.
    """

    folder: Path
    subject: str
    names: Mapping[str, str]
    runs: tuple[RunRecord, ...]
    launches: pd.DataFrame
    ratios: pd.DataFrame
    parts: pd.DataFrame
    curves: pd.DataFrame
    final: pd.DataFrame
    scaling: Scaling
    fits: tuple[Fit, ...]
    reference: NetworkReference | None
    beyond: tuple[Extrapolation, ...] = ()
    costs: tuple[PointOverheads, ...] = ()
    goal: float | None = None
    targets: tuple[TimeToAccuracy, ...] = ()


Draw = Callable[[SweepView], Iterable[FigureBlock]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepFigure:
    """Figures of one kind: the section of the page where they stand, and how they are drawn."""

    section: str
    draw: Draw


def figure(section: str) -> Callable[[Draw], SweepFigure]:
    """Mark a function that yields figures of `section`, one of `SECTIONS`."""
    assert section in SECTIONS, f"{section} is not a section of the page"
    return lambda draw: SweepFigure(section=section, draw=draw)


def draw_figures(view: SweepView) -> dict[str, tuple[FigureBlock, ...]]:
    """Return the figures of `view` by section, in the order of the modules' names and of their place in them."""
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    known = dict.fromkeys(one for module in modules for one in vars(module).values() if isinstance(one, SweepFigure))
    blocks = [(one.section, block) for one in known for block in one.draw(view)]
    return {section: tuple(block for place, block in blocks if place == section) for section in SECTIONS}
