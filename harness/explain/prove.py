"""Launch counterfactuals in turn with the launch as it is, and hold what they give against what was expected."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from rich.console import Console

from harness.analysis.frames import launch_frame
from harness.analysis.read_results import load_sweep
from harness.analysis.scaling import paired_ratio
from harness.analysis.stats import Interval
from harness.base.errors import RunError
from harness.base.files import write_atomic
from harness.datasets import locate
from harness.explain.counterfactual import AS_IT_IS, Counterfactual, Expected, as_it_is, counterfactuals
from harness.explain.evidence import Explanation
from harness.schema.record import decode, encode
from harness.schema.sweep import Sweep
from harness.sweep.execute import run_sweep

FOLDER = "counterfactuals"  # results/counterfactuals/<sweep>/<time>/
PLAN_FILE, PROOF_FILE = "expected.json", "proof.json"
CONFIRMED, REFUTED, OPEN = "confirmed", "not confirmed", "open"


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What one counterfactual gave, as a part of the epoch's time: `expected` beforehand, `measured` by launches.

    `interval` is None below 6 pairs of valid launches, `measured` where there is none. `verdict` is ``not confirmed``
    where the two intervals lie apart; ``open`` where one is missing, or where noise hides it: the measured gain may be
    nothing, the expected one may not, or the measured one is uncertain by more than all that is expected.
    """

    name: str
    removes: str
    how: str
    against: str
    expected: Expected
    measured: float | None
    interval: Interval | None
    launches: int
    verdict: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Proofs:
    """All proofs of one point. `layout` is its text, `made` when the first launch began."""

    sweep: str
    layout: str
    ranks: int
    made: datetime
    proofs: tuple[Proof, ...]


def prove(
    found: Explanation, *, blocks: int, data_dir: Path | None, results: Path, say: Callable[[str], None]
) -> Proofs:
    """Launch the counterfactuals of the largest point, `blocks` times each, in turn in one sitting.

    What is expected is written down and said before the first launch. A block has every launch once, in an order of
    chance.

    Raises:
        UserError: a launch cannot run here, or its data is not here.
        RunError: there is nothing to prove, or a launch failed.
    """
    bill = found.main
    chosen = counterfactuals(found, bill.layout) if bill else ()
    if bill is None or not chosen:
        raise RunError("nothing to prove: no cause that a launch can take away costs 1 % of the epoch")
    run = next(run for run in found.loaded.valid if str(run.point.layout) == bill.layout)
    locate(run.point.workload, data_dir, run.point.data_id)
    made = datetime.now(UTC)
    folder = results / FOLDER / found.loaded.folder.resolve().name / made.strftime("%Y%m%dT%H%M%S%f")
    folder.mkdir(parents=True)
    write_atomic(folder / PLAN_FILE, encode(chosen))
    for one in chosen:
        say(f"expected: {one.name} ({one.how}) gives {_percents(one.expected)} of the epoch, against {one.against}")
    sides = {AS_IT_IS: as_it_is(run)} | {one.name: one.sweep for one in chosen}
    frames = _launch(sides, folder, blocks, data_dir, say)
    proofs = Proofs(
        sweep=found.loaded.folder.resolve().name,
        layout=bill.layout,
        ranks=bill.ranks,
        made=made,
        proofs=tuple(judge(one, frames[one.against], frames[one.name]) for one in chosen),
    )
    write_atomic(folder / PROOF_FILE, encode(proofs))
    return proofs


def newest_proofs(results: Path, sweep: str) -> Proofs | None:
    """Return what was proven last about the sweep of that name, None where nothing was.

    Raises:
        UserError: the file is damaged.
    """
    files = sorted((results / FOLDER / sweep).glob(f"*/{PROOF_FILE}"))
    return decode(files[-1].read_bytes(), Proofs, files[-1]) if files else None


def judge(one: Counterfactual, against: pd.DataFrame, without: pd.DataFrame) -> Proof:
    """Return what `without` gives, valid rows of `frames.launch_frame` as `against`: 1 - the ratio of their medians."""
    ratio = interval = None
    if len(against) and len(without):
        ratio = float(without["seconds"].median() / against["seconds"].median())
        found = paired_ratio(without, against)
        interval = Interval(low=1 - found.high, high=1 - found.low) if found else None
    verdict = OPEN
    if interval is not None:
        low, high = one.expected.low, one.expected.high
        apart = interval.low > high or interval.high < low
        hidden = interval.low <= 0 <= interval.high and not low <= 0 <= high
        hidden |= (interval.high - interval.low) / 2 > max(abs(low), abs(high))
        verdict = REFUTED if apart else OPEN if hidden else CONFIRMED
    return Proof(
        name=one.name,
        removes=one.removes,
        how=one.how,
        against=one.against,
        expected=one.expected,
        measured=None if ratio is None else 1 - ratio,
        interval=interval,
        launches=min(len(against), len(without)),
        verdict=verdict,
    )


def _launch(
    sides: Mapping[str, Sweep], folder: Path, blocks: int, data_dir: Path | None, say: Callable[[str], None]
) -> dict[str, pd.DataFrame]:
    """Return the valid launches of every side, made in turn."""
    order, made = random.Random(folder.name), dict[str, Path]()
    for block in range(blocks):
        say(f"block {block + 1} of {blocks}: {', '.join(sides)}")
        for name in order.sample(list(sides), len(sides)):
            made[name] = run_sweep(
                replace(sides[name], repeats=block + 1),
                data_dir=data_dir,
                results=folder / name.replace(" ", "-"),
                console=Console(quiet=True),
                invalid_too=False,
            )
    return {name: _valid(place) for name, place in made.items()}


def _valid(folder: Path) -> pd.DataFrame:
    loaded = load_sweep(folder, every_code=True)
    frame = launch_frame(loaded.runs, loaded.epochs)
    return frame[frame["valid"]]


def _percents(expected: Expected) -> str:
    span = f" ({100 * expected.low:.1f} to {100 * expected.high:.1f} %)" if expected.interval else ""
    return f"{100 * expected.value:.1f} %{span}"
