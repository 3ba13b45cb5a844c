"""Run a probe: launches of the measuring ranks under every setting, in turns, and the record of what they found."""

import random
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from harness.base.cpu_contention import wait_until_quiet
from harness.base.errors import RunError, UserError
from harness.base.files import folder_atomic
from harness.base.hostlock import HostLock
from harness.base.processes import ask
from harness.base.provenance import describe_machine, git_commit
from harness.probe.fit import fit_cost
from harness.probe.measure import MessageSeries, ProbePlan, ProbeResult
from harness.probe.plan import DEFAULT, message_sizes
from harness.schema.layout import Layout
from harness.schema.message_cost import (
    PROBE_FILE,
    PROBE_SCHEMA,
    PROBES,
    SAMPLES_FILE,
    MessageCost,
    MessageCosts,
    Probe,
    Setting,
)
from harness.schema.record import decode, encode
from harness.schema.sweep import digest
from harness.sweep.outcome import first_error
from harness.sweep.schedulers import open_scheduler

REDUCTIONS = ("native", "messages", "node-aware")

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeSettings:
    """What the user asked for. `launcher` starts the ranks; None starts `ranks` ranks on this machine's cores.

    `settings` are compared with the library's default, in so many `launches` each. `largest` in bytes; `samples`,
    `budget_s` and `limit_s` are for one launch.
    """

    ranks: int = 2
    launcher: str | None = None
    settings: tuple[Setting, ...] = ()
    largest: int = 64 * 2**20
    launches: int = 6
    samples: int = 25
    budget_s: float = 8.0
    limit_s: float = 180.0
    force: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeSamples:
    """A probe and every sample behind it, by the name of its setting and the number of the launch."""

    probe: Probe
    samples: tuple[tuple[str, int, MessageSeries], ...]


def run_probe(settings: ProbeSettings, say: Say) -> ProbeSamples:
    """Measure under every setting, when no sweep or other probe is timed on this host.

    Raises:
        UserError: the ranks cannot run here, the machine is busy, or settings of Open MPI are asked of another library.
        RunError: the ranks failed under the library's default setting.
    """
    command, environment = _launcher(settings)
    plan = ProbePlan(
        sizes=message_sizes(settings.largest),
        samples=settings.samples,
        budget_s=settings.budget_s,
        reductions=REDUCTIONS,
    )
    with HostLock().held(f"a probe in '{Path.cwd()}'", say) as handles:
        ranks = _Ranks(command=command, environment=environment, handles=handles)
        begin = time.perf_counter()
        found = _measure_all(settings, ranks, plan, say)
    (commit, dirty), cores = git_commit(), found.probe.ranks
    spent = cores * (time.perf_counter() - begin)
    return replace(found, probe=replace(found.probe, commit=commit, dirty=dirty, core_seconds=spent))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ranks:
    """How the measuring ranks are started: the launcher's words, its environment, the files they inherit."""

    command: tuple[str, ...]
    environment: Mapping[str, str | None]
    handles: tuple[int, ...]


def _measure_all(settings: ProbeSettings, ranks: _Ranks, plan: ProbePlan, say: Say) -> ProbeSamples:
    load = wait_until_quiet(say, force=settings.force)
    notes: list[str] = [f"measured beside other processes that kept {load:.1f} cores busy"] if load > 1 else []
    answers: dict[str, list[ProbeResult]] = {setting.name: [] for setting in (DEFAULT, *settings.settings)}
    for launch in range(settings.launches):
        for setting in _in_turns((DEFAULT, *settings.settings), launch):
            if setting.name not in answers:
                continue
            say(f"[{launch + 1}/{settings.launches}] {setting.name}")
            try:
                answer = _measure(ranks, setting, plan, settings.limit_s)
            except RunError as error:
                if setting is DEFAULT:
                    raise
                notes.append(f"the setting '{setting.name}' did not run: {error}")
                del answers[setting.name]
                continue
            if settings.settings and not answer.mpi_library.startswith("Open MPI"):
                raise UserError(
                    f"--mca and --algorithms set up Open MPI, these ranks use {answer.mpi_library}: leave them out"
                )
            answers[setting.name].append(answer)
    found = [(setting, answers[setting.name]) for setting in (DEFAULT, *settings.settings) if setting.name in answers]
    return _found(found, ranks.command, notes)


def _in_turns(settings: Sequence[Setting], launch: int) -> list[Setting]:
    """Return the settings in another order in every round: what drifts falls on all alike."""
    return random.Random(launch).sample(list(settings), len(settings))


def _found(
    answers: Sequence[tuple[Setting, Sequence[ProbeResult]]], command: Sequence[str], notes: Sequence[str]
) -> ProbeSamples:
    first, everyone = answers[0][1][0], [answer for _, several in answers for answer in several]
    probe = Probe(
        schema=PROBE_SCHEMA,
        measured=datetime.now(UTC),
        machine=describe_machine(gpus=()),
        mpi_library=first.mpi_library,
        launcher=shlex.join(command),
        hosts=first.hosts,
        by_setting=tuple(
            MessageCosts(setting=setting, costs=fit([answer.series for answer in several]))
            for setting, several in answers
        ),
        invalid=tuple(dict.fromkeys(reason for answer in everyone for reason in answer.invalid)),
        notes=(*notes, *dict.fromkeys(note for answer in everyone for note in answer.notes)),
    )
    samples = tuple(
        (setting.name, launch, series)
        for setting, several in answers
        for launch, answer in enumerate(several)
        for series in answer.series
    )
    return ProbeSamples(probe=probe, samples=samples)


def fit(launches: Sequence[Sequence[MessageSeries]]) -> tuple[MessageCost, ...]:
    """Return the cost of every operation and level in the series of several launches."""
    groups: dict[tuple[str, str, int], dict[int, list[float]]] = {}
    for one in (series for launch in launches for series in launch):
        group = groups.setdefault((one.operation, one.level, one.ranks), {})
        group.setdefault(one.bytes, []).append(median(one.seconds))
    return tuple(fit_cost(*key, samples) for key, samples in groups.items())


def _launcher(settings: ProbeSettings) -> tuple[tuple[str, ...], Mapping[str, str | None]]:
    """Return the words that start the ranks and what they need in the environment."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
    if settings.launcher is not None:
        words = tuple(shlex.split(settings.launcher))
        if not words:
            raise UserError("--launcher is empty: write the command that starts the ranks, such as 'mpirun -n 4'")
        return words, threads | quiet
    if settings.ranks < 2:
        raise UserError(f"RANKS={settings.ranks} is too small: a probe needs at least 2 ranks")
    scheduler = open_scheduler("local", oversubscribe=settings.force)
    layout = Layout(nodes=settings.ranks)
    refusal = scheduler.refusal(layout)
    if refusal:
        raise UserError(f"RANKS={settings.ranks} {refusal}: ask for fewer, or add --force to measure all the same")
    return scheduler.launcher(layout).words, {**scheduler.environment(layout), **threads, **quiet}


def _measure(ranks: _Ranks, setting: Setting, plan: ProbePlan, limit_s: float) -> ProbeResult:
    """Launch the measuring ranks under one setting."""
    # In the working folder, not in /tmp: rank 0 may be on another host, which shares this one.
    with tempfile.TemporaryDirectory(prefix=".harness-probe-", dir=Path.cwd()) as name:
        plan_file, answer_file = Path(name) / "plan.json", Path(name) / "answer.json"
        plan_file.write_bytes(encode(plan))
        changes = dict(ranks.environment) | {f"OMPI_MCA_{key}": value for key, value in setting.mca.items()}
        words = (*ranks.command, sys.executable, "-m", "harness.probe.measure", str(plan_file), str(answer_file))
        reply = ask(words, limit_s=limit_s, changes=changes, handles=ranks.handles)
        if not answer_file.exists():  # whatever the exit code says
            raise RunError(first_error(reply.err) or reply.last_error)
        return decode(answer_file.read_bytes(), ProbeResult, answer_file)


def probe_name(probe: Probe) -> str:
    """Return the name of the probe's folder: the same for the same ranks, hosts, machine and library."""
    hosts = len(set(probe.hosts))
    identity = digest((probe.hosts, probe.machine.fingerprint, probe.mpi_library, probe.launcher))
    return f"{hosts}x{-(-probe.ranks // hosts)}-{identity[:8]}"


def write_probe(found: ProbeSamples, results: Path) -> Path:
    """Write the record and every sample into ``results/probes/<name>``, replacing an older one; return the folder.

    Columns of samples.parquet: setting, operation, level (text), launch, ranks, bytes, sample (int64), seconds
    (float64, the slowest rank's).

    Raises:
        UserError: the folder cannot be written to.
    """
    import pandas as pd

    rows = [
        (setting, launch, one.operation, one.level, one.ranks, one.bytes, number, seconds)
        for setting, launch, one in found.samples
        for number, seconds in enumerate(one.seconds)
    ]
    columns = ["setting", "launch", "operation", "level", "ranks", "bytes", "sample", "seconds"]
    folder = results / PROBES / probe_name(found.probe)
    with folder_atomic(folder) as staging:
        pd.DataFrame(rows, columns=columns).to_parquet(staging / SAMPLES_FILE, index=False)
        (staging / PROBE_FILE).write_bytes(encode(found.probe))
    return folder
