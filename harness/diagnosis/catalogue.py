"""The known causes, one entry each; and what they find in launches."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.diagnosis import setting, timing
from harness.diagnosis.case import Case, Finding, Symptom
from harness.schema.sweep import Failure


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """One known cause: `find` looks for it in a launch, `find_failed` in one that did not reach its end.

    `explains` are causes that are its consequence: they are not told beside it. A cause that is `measured` is told with
    the time it took, and explains nothing that costs more than twice that.
    """

    name: str
    fix: str
    find: Callable[[Case], Symptom | None] | None = None
    find_failed: Callable[[Failure], Symptom | None] | None = None
    explains: tuple[str, ...] = ()
    measured: bool = False


_LATE = ("a slow host", "a slow rank", "rare delays")

CATALOGUE = (
    Cause(
        name="singletons",
        fix="Use the mpirun of the MPI library (MPI=system with the site's module), or srun --mpi=pmix.",
        find_failed=setting.singletons,
    ),
    Cause(
        name="oversubscription",
        fix="Ask for as many cores as ranks x THREADS=, or start fewer ranks.",
        find=setting.oversubscribed,
        explains=("binding", "thread contention", "cores taken by others", "little work per sum", *_LATE),
    ),
    Cause(
        name="binding",
        fix="Bind every rank to cores of its own: mpirun --bind-to core, srun --cpu-bind=cores.",
        find=setting.bound_together,
        explains=("thread contention", "cores taken by others", "little work per sum", *_LATE),
    ),
    Cause(
        name="cores taken by others",
        fix="Ask for whole nodes (exclusive), or end the other programs.",
        find=setting.other_programs,
        explains=("thread contention", *_LATE),
        measured=True,
    ),
    Cause(
        name="stolen time",
        fix="Use a virtual machine with cores of its own, or real ones.",
        find=setting.stolen,
        explains=("a slow host", "a slow rank", "rare delays"),
        measured=True,
    ),
    Cause(
        name="thread contention",
        fix="Set THREADS= to the cores of a rank, and no larger OMP_NUM_THREADS and the like.",
        find=setting.contending_threads,
        explains=("a slow rank", "rare delays"),
        measured=True,
    ),
    Cause(
        name="unequal rows",
        fix="Choose a global batch that the number of ranks divides, or BATCH_PER_RANK=.",
        find=timing.unequal_rows,
        explains=("a slow rank", "a slow host"),
    ),
    Cause(
        name="a slow host",
        fix="Leave the host out (its name in the scheduler's exclude list), or give it fewer rows with shares.",
        find=timing.slow_host,
        explains=("a slow rank",),
    ),
    Cause(
        name="a slow rank",
        fix="Look for what else runs on its core, and at its frequency; move it to another core or host.",
        find=timing.one_slow_rank,
    ),
    Cause(
        name="rare delays",
        fix="Regular ones: callbacks, logging or checkpoints on one rank, done less often. Irregular ones: leave the "
        "core that serves interrupts to the system.",
        find=timing.rare_delays,
    ),
    Cause(
        name="falling frequency",
        fix="Cool the host or fix its frequency (governor performance, no turbo), and compare equal epochs only.",
        find=timing.slowing_down,
    ),
    Cause(
        name="small shared memory",
        fix="Enlarge /dev/shm, in a container with --shm-size.",
        find=setting.small_segments,
        find_failed=setting.killed_in_shared_memory,
        explains=("little work per sum",),
    ),
    Cause(
        name="no compiler",
        fix="Load a C++ compiler's module on the node that sets up; `make doctor` tells what is missing.",
        find=setting.no_compiler,
        explains=("little work per sum",),
    ),
    Cause(
        name="a slow path",
        fix="Take the setting away, so that MPI chooses the faster network; `make probe` shows the difference.",
        find=setting.slow_path,
        explains=("little work per sum",),
    ),
    Cause(
        name="tf.data's tuner",
        fix="Set the number of parallel calls and the prefetch by hand instead of AUTOTUNE.",
        find=timing.tuner,
        explains=("input",),
    ),
    Cause(
        name="input",
        fix="More THREADS= a rank for decoding, smaller files, or INPUT=resident where rows fit into memory.",
        find=timing.input_bound,
    ),
    Cause(
        name="little work per sum",
        fix="A larger BATCH_PER_RANK=, fewer ranks, WIRE=bf16, or SYNC=weights:K, which sums every K steps.",
        find=timing.little_work,
    ),
    Cause(
        name="learning rate",
        fix="RATE_SCALING=linear with WARMUP_EPOCHS= where it was not scaled; a smaller rate or a longer warm-up where "
        "it was; or GLOBAL_BATCH=, which keeps the batch.",
        find=timing.worse_learning,
    ),
    Cause(
        name="a partial last batch",
        fix="DROP_REMAINDER=1, or a global batch that divides the rows.",
        find=timing.partial_batch,
    ),
    Cause(
        name="unsure clocks",
        fix="Synchronise the hosts' clocks (chrony, PTP) and look at medians over many calls only.",
        find=timing.unsure_clocks,
    ),
)


def diagnose(cases: Sequence[Case], failures: Iterable[Failure] = ()) -> tuple[Finding, ...]:
    """Return what is known to be wrong with launches, the dearest first; what is no time comes last."""
    found: dict[tuple[Cause, str], list[Symptom]] = {}
    ended = list(failures)
    for case in cases:
        seen = {cause: told for cause in CATALOGUE if cause.find and (told := cause.find(case))}
        for cause, told in seen.items():
            if not any(_explains(other, by, cause, told) for other, by in seen.items()):
                found.setdefault((cause, told.who), []).append(told)
    for failure in ended:
        for cause in CATALOGUE:
            if cause.find_failed and (said := cause.find_failed(failure)):
                found.setdefault((cause, said.who), []).append(said)
    findings = [_finding(cause, every, len(cases) + len(ended)) for (cause, _), every in found.items()]
    return tuple(sorted(findings, key=lambda one: -1.0 if one.cost is None else one.cost, reverse=True))


def _explains(cause: Cause, evidence: Symptom, other: Cause, told: Symptom) -> bool:
    if other.name not in cause.explains:
        return False
    return not cause.measured or (told.cost or 0.0) <= 2 * (evidence.cost or 0.0)


def _finding(cause: Cause, seen: Sequence[Symptom], of: int) -> Finding:
    worst = max(seen, key=lambda one: one.cost or 0.0)
    return Finding(cause=cause.name, evidence=worst.text, fix=cause.fix, cost=worst.cost, launches=len(seen), of=of)
