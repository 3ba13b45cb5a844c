"""What ranks trained between failures, and the steps that were made again."""

from collections.abc import Sequence

from harness.schema.record import FailedRank, RunRecord, Stretch


def stretch_rate(run: RunRecord, stretch: Stretch) -> float:
    """Return the rows a second that `stretch` of `run` trained, evaluation not counted; NaN where that is not known."""
    rows = _first_rows(run, stretch.first + stretch.steps) - _first_rows(run, stretch.first)
    return rows / stretch.training_s if stretch.training_s > 0 else float("nan")


def stretches_around(run: RunRecord, loss: FailedRank) -> tuple[Stretch | None, Stretch | None]:
    """Return the stretches of `run` before and after a rank failed, None where no step was made."""
    before = [each for each in run.stretches if each.started <= loss.noticed]
    after = [each for each in run.stretches if each.started > loss.noticed]
    return before[-1] if before else None, after[0] if after else None


def _first_rows(run: RunRecord, steps: int) -> int:
    """Return how many rows the first `steps` steps of a launch have trained."""
    epochs, rest = divmod(steps, run.steps_per_epoch)
    whole = min(sum(rank.rows for rank in run.ranks), run.steps_per_epoch * run.global_batch)
    return epochs * whole + rest * run.global_batch


def steps_repeated(losses: Sequence[FailedRank]) -> int:
    """Return the steps repeated; ranks that failed at once share them."""
    return sum({(loss.noticed, loss.epoch, loss.step): loss.redone for loss in losses}.values())
