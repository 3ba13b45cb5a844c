"""What the tables of a sweep's page show, and its first screen."""

from datetime import datetime
from typing import Any

import pandas as pd

from harness.analysis.breakdown import caps
from harness.analysis.learning import (
    TimeToAccuracy,
    default_accuracy,
    final_frame,
    speedups_to_accuracy,
    times_to_accuracy,
)
from harness.analysis.load import Loaded
from harness.analysis.scaling import Scaling, reference_points
from harness.base.files import resource
from harness.prediction.forecast import read_prediction, score
from harness.report import captions
from harness.report.figures import SweepView
from harness.report.figures.breakdown import EPOCH, LAUNCH, visible
from harness.report.methods import bibtex, methods
from harness.report.render import Head
from harness.report.run_words import run_facts
from harness.report.tiles import tiles
from harness.schema.claim import CLAIMS_FILE, Claim, read_published
from harness.schema.workload import Workload


def numbers_of(loaded: Loaded, view: SweepView) -> dict[str, Any]:
    """Return what the tables of a sweep with valid launches show."""
    scaling, workload = view.scaling, loaded.runs[0].point.workload
    breakdown = rows_of(view.parts)
    capped = caps(scaling, view.launches)
    final = final_frame(view.launches)
    prediction, starts = read_prediction(loaded.folder), _first_starts(view.launches)
    goal = default_accuracy(view.launches, scaling.base.layout)
    targets = _targets(loaded.epochs, scaling, goal) if goal is not None else ()
    sentences = (captions.headline(scaling, workload), captions.to_accuracy(scaling, targets, goal))
    return {
        "head": Head(
            question=captions.question(scaling, workload),
            answer=" ".join(filter(None, sentences)),
            tiles=tiles(scaling, capped, final, loaded.runs, targets, goal),
            facts=run_facts(loaded.valid, loaded.runs),
        ),
        "methods": methods(loaded, scaling),
        "references": bibtex(loaded.valid),
        "scaling": scaling,
        "others": reference_points(view.launches, scaling, _claims(workload)),
        "caps": capped,
        "fits": view.fits,
        "reference": view.reference,
        "target": goal,
        "targets": targets,
        "prediction": prediction,
        "scores": score(prediction, scaling.points, starts) if prediction else (),
        "growth_scores": score(prediction, scaling.points, starts, growth=True) if prediction else (),
        "breakdown": breakdown,
        "epoch_parts": EPOCH,
        "launch_parts": visible(view.parts, LAUNCH),
        "final": rows_of(final),
        "method": captions.method(scaling),
        "repeats": captions.repeats(scaling),
    }


def _first_starts(launches: pd.DataFrame) -> dict[str, datetime]:
    """Return when the first valid launch of each layout began."""
    starts = launches[launches["valid"]].groupby("layout")["started"].min()
    return {str(layout): start for layout, start in starts.items()}


def _targets(epochs: pd.DataFrame, scaling: Scaling, goal: float) -> tuple[TimeToAccuracy, ...]:
    """Return every layout's time to the accuracy `goal` over the base's."""
    times = times_to_accuracy(epochs, goal)
    return speedups_to_accuracy(times, times[times["layout"] == scaling.base.layout])


def _claims(workload: Workload) -> tuple[Claim, ...]:
    """Return the published claims about `workload`."""
    published = read_published(resource(CLAIMS_FILE))
    return tuple(claim for claim in published.claims if claim.experiment == workload.name)


def rows_of(frame: pd.DataFrame) -> tuple[dict[str, Any], ...]:
    """Return the rows of `frame` for a template."""
    return tuple({str(name): value for name, value in row.items()} for row in frame.to_dict("records"))
