"""The figures of a sweep's report. To add one, put a file here with a function marked `figure`; that is all."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pandas as pd

from harness.analysis.accuracy_times import TimeToAccuracy
from harness.analysis.device_use import DeviceUse
from harness.analysis.scaling import Scaling
from harness.prediction.extrapolation import Extrapolation
from harness.report.answer import PageFigure
from harness.schema.record import RunRecord
from harness.why.overheads import PointOverheads

SECTIONS = ("scaling", "time", "learning")
"""The parts of the page that hold figures, in its order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepView:
    """What a figure may draw: the numbers of one sweep, which has a valid launch.

    `folder` has the records. `runs` and `launches` (`launch_frames.launch_frame`) are of all launches, `ratios`
    (`scaling.ratios_frame`) of the valid ones; `parts` is `time_parts.breakdown_frame`, `curves` is
    `curve_frame` and `final` its `final_frame`, `extrapolations` what is predicted of more ranks. `costs` are
    `overheads` by part of the time, `devices` what every layout's devices do. `goal` is a test accuracy, None where
    none was tested, and `targets` the times to it. `subject` names the workload, `names` has a reader's words for every
    layout.
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
    extrapolations: tuple[Extrapolation, ...] = ()
    costs: tuple[PointOverheads, ...] = ()
    devices: Mapping[str, DeviceUse] = field(default_factory=dict)
    goal: float | None = None
    targets: tuple[TimeToAccuracy, ...] = ()


Draw = Callable[[SweepView], Iterable[PageFigure]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepFigure:
    """Figures of one kind: the section of the page where they stand, and how they are drawn."""

    section: str
    draw: Draw


def figure(section: str) -> Callable[[Draw], SweepFigure]:
    """Mark a function that yields figures of `section`, one of `SECTIONS`."""
    assert section in SECTIONS, f"{section} is not a section of the page"
    return lambda draw: SweepFigure(section=section, draw=draw)


def draw_figures(view: SweepView) -> dict[str, tuple[PageFigure, ...]]:
    """Return the figures of `view` by section, in the order of the modules' names and of their place in them."""
    kinds: dict[SweepFigure, None] = {}  # each once, in order
    for entry in iter_modules(__path__):
        module = import_module(f"{__name__}.{entry.name}")
        kinds |= dict.fromkeys(value for value in vars(module).values() if isinstance(value, SweepFigure))
    figures: dict[str, list[PageFigure]] = {section: [] for section in SECTIONS}
    for kind in kinds:
        figures[kind.section] += kind.draw(view)
    return {section: tuple(drawn) for section, drawn in figures.items()}
