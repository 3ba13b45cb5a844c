"""The known causes of overhead and failure, one entry each, and which of them the launches of a sweep show."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from harness.analysis.launch_frames import launch_frame, middle_launch
from harness.analysis.read_results import Loaded
from harness.analysis.sync_calls import Calls, read_calls
from harness.base.errors import UserError
from harness.schema.record import Failure, RunRecord, read_run
from harness.why import symptoms
from harness.why.overheads import CAUSES
from harness.why.symptoms import Case, Symptom, rare_delays

MOST_LAUNCHES = 24  # that are examined: reading every call of thousands would take minutes


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownCause:
    """One known cause: `find` looks for it in a launch, `find_failed` in one that did not reach its end.

    `overhead` is the column of the `overheads.CAUSES` that what it costs is part of, empty where that is not time.
    `explains` are causes that are its consequence: they are not reported beside it. A cause that is `measured` is
    reported with the time it took, and explains nothing that costs more than twice that.
    """

    name: str
    fix: str
    overhead: str = ""
    find: Callable[[Case], Symptom | None] | None = None
    find_failed: Callable[[Failure], Symptom | None] | None = None
    explains: tuple[str, ...] = ()
    measured: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A cause that was found: its name, evidence and fix, in `launches` of `of` that were examined.

    `cost` is the part of an epoch, the greatest of the launches, and `overhead` the name of what it is part of.
    """

    cause: str
    overhead: str
    evidence: str
    fix: str
    cost: float | None
    launches: int
    of: int


_LATE = ("a slow host", "a slow rank", "rare delays")

CATALOGUE = (
    KnownCause(
        name="singletons",
        fix="Use the mpirun of the MPI library (--mpi system with the site's module), or srun --mpi=pmix.",
        find_failed=symptoms.singletons,
    ),
    KnownCause(
        name="oversubscription",
        overhead="computing_seconds",
        fix="Ask for as many cores as ranks x --threads, or start fewer ranks.",
        find=symptoms.oversubscribed,
        explains=("binding", "thread contention", "cores taken by others", "little work per allreduce", *_LATE),
    ),
    KnownCause(
        name="binding",
        overhead="computing_seconds",
        fix="Bind every rank to cores of its own: mpirun --bind-to core, srun --cpu-bind=cores.",
        find=symptoms.bound_together,
        explains=("thread contention", "cores taken by others", "little work per allreduce", *_LATE),
    ),
    KnownCause(
        name="cores taken by others",
        overhead="queue_seconds",
        fix="Ask for whole nodes (exclusive), or end the other programs.",
        find=symptoms.other_programs,
        explains=("thread contention", *_LATE),
        measured=True,
    ),
    KnownCause(
        name="stolen time",
        overhead="queue_seconds",
        fix="Use a virtual machine with cores of its own, or real ones.",
        find=symptoms.stolen,
        explains=("a slow host", "a slow rank", "rare delays"),
        measured=True,
    ),
    KnownCause(
        name="thread contention",
        overhead="computing_seconds",
        fix="No OMP_NUM_THREADS or the like above --threads. Where none is set: measure again, it may have been a "
        "disturbance.",
        find=symptoms.contending_threads,
        explains=("a slow rank", "rare delays"),
        measured=True,
    ),
    KnownCause(
        name="unequal rows",
        overhead="skew_rows_seconds",
        fix="Choose a global batch that the number of ranks divides, or --batch-per-rank.",
        find=symptoms.unequal_rows,
        explains=("a slow rank", "a slow host"),
    ),
    KnownCause(
        name="a slow host",
        overhead="skew_rank_seconds",
        fix="Leave the host out (its name in the scheduler's exclude list).",
        find=symptoms.slow_host,
        explains=("a slow rank",),
    ),
    KnownCause(
        name="a slow rank",
        overhead="skew_rank_seconds",
        fix="Look for what else runs on its core, and at its frequency; move it to another core or host.",
        find=symptoms.one_slow_rank,
    ),
    KnownCause(
        name="rare delays",
        overhead="skew_rare_seconds",
        fix="Regular ones: callbacks, logging or checkpoints on one rank, done less often. Irregular ones: leave the "
        "core that serves interrupts to the system.",
        find=rare_delays,
    ),
    KnownCause(
        name="falling frequency",
        overhead="computing_seconds",
        fix="Cool the host or fix its frequency (governor performance, no turbo), and compare equal epochs only.",
        find=symptoms.slowing_down,
    ),
    KnownCause(
        name="small shared memory",
        overhead="sum_seconds",
        fix="Enlarge /dev/shm, in a container with --shm-size.",
        find=symptoms.small_segments,
        find_failed=symptoms.killed_in_shared_memory,
        explains=("little work per allreduce",),
    ),
    KnownCause(
        name="no compiler",
        overhead="sum_seconds",
        fix="Load a C++ compiler's module on the node that sets up; `make doctor` says what is missing.",
        find=symptoms.no_compiler,
        explains=("little work per allreduce",),
    ),
    KnownCause(
        name="a slow path",
        overhead="sum_seconds",
        fix="Remove the setting, so that MPI chooses the faster network; `make probe` shows the difference.",
        find=symptoms.slow_path,
        explains=("little work per allreduce",),
    ),
    KnownCause(
        name="tf.data's tuner",
        overhead="input_seconds",
        fix="Set the number of parallel calls and the prefetch by hand instead of AUTOTUNE.",
        find=symptoms.tuner,
        explains=("input",),
    ),
    KnownCause(
        name="input",
        overhead="input_seconds",
        fix="More --threads a rank for decoding, smaller files, or --input resident where rows fit into memory.",
        find=symptoms.input_bound,
    ),
    KnownCause(
        name="little work per allreduce",
        overhead="sum_seconds",
        fix="A larger --batch-per-rank, fewer ranks, --wire bf16, or --sync weights:K, which averages every K steps.",
        find=symptoms.little_work,
    ),
    KnownCause(
        name="learning rate",
        fix="--rate-scaling linear with --warmup-epochs where it was not scaled; a smaller rate or a longer warm-up "
        "where it was; or --global-batch, which keeps the batch.",
        find=symptoms.worse_learning,
    ),
    KnownCause(
        name="a partial last batch",
        overhead="computing_seconds",
        fix="--drop-remainder, or a global batch that divides the rows.",
        find=symptoms.partial_batch,
    ),
    KnownCause(
        name="unsure clocks",
        fix="Synchronise the hosts' clocks (chrony, PTP) and look at medians over many calls only.",
        find=symptoms.unsure_clocks,
    ),
)


def find_causes(cases: Sequence[Case], failures: Iterable[Failure] = ()) -> tuple[Finding, ...]:
    """Return the known causes that launches show, costliest first; what is not time comes last."""
    symptoms_of: dict[tuple[KnownCause, str], list[Symptom]] = {}
    failed = list(failures)
    for case in cases:
        seen = {cause: symptom for cause in CATALOGUE if cause.find and (symptom := cause.find(case))}
        for cause, symptom in seen.items():
            if not _is_consequence(cause, symptom, seen):
                symptoms_of.setdefault((cause, symptom.who), []).append(symptom)
    for failure in failed:
        for cause in CATALOGUE:
            if cause.find_failed and (symptom := cause.find_failed(failure)):
                symptoms_of.setdefault((cause, symptom.who), []).append(symptom)
    examined = len(cases) + len(failed)
    findings = [_finding(cause, symptoms, examined) for (cause, _), symptoms in symptoms_of.items()]
    return tuple(sorted(findings, key=lambda finding: -1.0 if finding.cost is None else finding.cost, reverse=True))


def _is_consequence(cause: KnownCause, symptom: Symptom, seen: Mapping[KnownCause, Symptom]) -> bool:
    """Say whether one of the causes `seen` in the same launch explains `cause`, which showed by `symptom`."""
    cost = symptom.cost or 0.0
    for root, evidence in seen.items():
        if cause.name in root.explains and (not root.measured or cost <= 2 * (evidence.cost or 0.0)):
            return True
    return False


def _finding(cause: KnownCause, seen: Sequence[Symptom], of: int) -> Finding:
    worst = max(seen, key=lambda symptom: symptom.cost or 0.0)
    overheads = (overhead.name for overhead in CAUSES if overhead.column == cause.overhead)
    return Finding(
        cause=cause.name,
        overhead=next(overheads, ""),
        evidence=worst.text,
        fix=cause.fix,
        cost=worst.cost,
        launches=len(seen),
        of=of,
    )


def diagnose_sweep(loaded: Loaded) -> tuple[Finding, ...]:
    """Return the findings of at most MOST_LAUNCHES launches and of all failures, costliest first.

    Launches with a slow rank come first, then one of each layout, the largest first, and then the rest: of the valid
    ones, which numbers are of; where none is, of all, to say why.
    """
    if not loaded.runs:
        return find_causes((), loaded.failures)
    base = None
    if loaded.valid:  # the middle launch on fewest ranks
        fewest = min(run.point.layout.ranks for run in loaded.valid)
        runs = [run for run in loaded.valid if run.point.layout.ranks == fewest]
        frame = launch_frame(runs, loaded.epochs[loaded.epochs["ranks"] == fewest])
        base = read_run(loaded.folder / middle_launch(frame))
    cases = [case for run in _chosen(loaded) if (case := _case(loaded, run, base))]
    return find_causes(cases, loaded.failures)


def _chosen(loaded: Loaded) -> list[RunRecord]:
    slow = {slow_rank.run for slow_rank in loaded.slow}
    runs = loaded.valid or loaded.runs
    launches_of_layout: Counter[str] = Counter()
    places: dict[str, tuple[bool, int, int]] = {}
    for run in runs:
        layout = run.point.layout
        launches_of_layout[str(layout)] += 1
        places[run.point.folder] = (run.point.folder not in slow, launches_of_layout[str(layout)], -layout.ranks)
    return sorted(runs, key=lambda run: places[run.point.folder])[:MOST_LAUNCHES]


def _case(loaded: Loaded, run: RunRecord, base: RunRecord | None) -> Case | None:
    """Return the launch with its epochs and calls; None where its files are gone, no calls where unreadable."""
    folder = loaded.folder / run.point.folder
    try:
        record = read_run(folder).as_timed()
    except UserError:
        return None
    calls: tuple[Calls, ...] = ()
    with suppress(UserError):  # of an older harness: its record has what the other causes need
        calls = read_calls(folder, record)
    return Case(run=record, calls=calls, base=base)
