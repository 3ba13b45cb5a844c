"""How long launches of another size will take, from quick ones of the same workload on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from harness.schema.sweep import Sweep


@dataclass(frozen=True, kw_only=True, slots=True)
class QuickLaunch:
    """What launches on `ranks` ranks took, in seconds, medians.

    `around` training and evaluation, `row` of training (all ranks together), and `evaluation` behind each epoch.
    """

    ranks: int
    around: float
    row: float
    evaluation: float


def quick_launches(launches: pd.DataFrame) -> tuple[QuickLaunch, ...]:
    """Return what the rows of `launches` (`frames.launch_frame`) took, by ranks, their times valid or not."""
    epochs = launches["epochs"]
    costs = pd.DataFrame(
        {
            "ranks": launches["ranks"],
            "around": launches["import_s"] + launches["inside_s"] - launches["trained_s"] - launches["evaluate_s"],
            "row": launches["trained_s"] / (epochs * launches["rows"]),
            "evaluation": launches["evaluate_s"] / epochs,
        }
    )
    medians = costs.groupby("ranks").median().reset_index()
    return tuple(
        QuickLaunch(ranks=int(row["ranks"]), around=row["around"], row=row["row"], evaluation=row["evaluation"])
        for row in medians.to_dict("records")
    )


def seconds_of(sweep: Sweep, quick: Sequence[QuickLaunch]) -> float:
    """Return the seconds that all launches of `sweep` take one after the other.

    Each as on the most ranks of `quick` (at least one) that it has as well, which is too much where more ranks are
    faster still.
    """
    epochs, rows = sweep.workload.epochs, sweep.workload.samples
    assert rows is not None
    total = 0.0
    for layout in sweep.layouts:
        like = max((one for one in quick if one.ranks <= layout.ranks), key=lambda one: one.ranks, default=quick[0])
        total += like.around + epochs * (rows * like.row + like.evaluation)
    return sweep.repeats * total
