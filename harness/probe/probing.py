"""Run a probe: launches of the measuring ranks under every setting, in random order, and the record of them all."""

import random
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from harness.base.cpu_contention import wait_until_quiet
from harness.base.errors import RunError, UserError
from harness.base.hostlock import HostLock
from harness.base.processes import ONE_THREAD, ask
from harness.base.provenance import describe_machine, git_commit
from harness.probe.fit_costs import fit_launches
from harness.probe.measure import MessageSeries, ProbePlan, ProbeResult
from harness.schema.claim import EXPERIMENTS
from harness.schema.layout import Layout
from harness.schema.message_cost import PROBE_SCHEMA, MessageCosts, Probe, Setting
from harness.schema.record import decode, encode
from harness.sweep.outcome import first_error
from harness.sweep.schedulers import open_scheduler

_SMALLEST, _LARGEST = 8, 64 * 2**20
DEFAULT = Setting(name="default", mca={})

# Open MPI's numbers of the algorithms in its component `tuned` (ompi_info --param coll tuned --level 9).
_ALGORITHMS = {
    1: "basic linear",
    2: "reduce and broadcast",
    3: "recursive doubling",
    4: "ring",
    5: "segmented ring",
    6: "Rabenseifner",
}


def message_sizes(largest: int = _LARGEST) -> tuple[int, ...]:
    """Return doublings from 8 bytes to `largest`, and the sizes of the papers' networks among them.

    Raises:
        UserError: `largest` is too small for a line.
    """
    if largest < 1024:
        raise UserError(f"LARGEST={largest} is too small: use at least 1024 bytes")
    sizes = {_SMALLEST << power for power in range(64)} | {one.weights_bytes for one in EXPERIMENTS.values()}
    return tuple(sorted(size for size in sizes if size <= largest))


def algorithm_settings() -> tuple[Setting, ...]:
    """Return one setting for each allreduce algorithm and component of Open MPI that can be chosen by name."""
    tuned = {"coll": "^han,adapt", "coll_tuned_use_dynamic_rules": "1"}
    algorithms = tuple(
        Setting(name=f"tuned, {name}", mca=tuned | {"coll_tuned_allreduce_algorithm": str(number)})
        for number, name in _ALGORITHMS.items()
    )
    return (
        Setting(name="tuned, own choice", mca={"coll": "^han,adapt"}),
        *algorithms,
        Setting(name="han", mca={"coll_han_priority": "100"}),
        Setting(name="sm", mca={"coll_sm_priority": "100"}),
    )


def parse_settings(texts: Sequence[str]) -> tuple[Setting, ...]:
    """Parse settings as users write them: ``pml=ob1 btl=self,sm``, one or more parameters each.

    Raises:
        UserError: a word is not NAME=VALUE.
    """
    settings = []
    for text in texts:
        words = [word.partition("=") for word in text.split()]
        if not words or not all(name and sign and value for name, sign, value in words):
            raise UserError(f"--mca '{text}' is not a setting: write NAME=VALUE, several of them with blanks between")
        settings.append(Setting(name=" ".join(text.split()), mca={name: value for name, _, value in words}))
    return tuple(settings)


_REDUCTIONS = ("native", "messages", "node-aware")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeSettings:
    """What the user asked for. `launcher` starts the ranks; None starts `ranks` ranks on this machine's cores.

    `settings` are compared with the library's default, in so many `launches` each. `largest` in bytes; `samples`,
    `budget_s` and `limit_s` are for one launch.
    """

    ranks: int = 2
    launcher: str | None = None
    settings: tuple[Setting, ...] = ()
    largest: int = _LARGEST
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


def run_probe(settings: ProbeSettings, say: Callable[[str], None]) -> ProbeSamples:
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
        reductions=_REDUCTIONS,
    )
    with HostLock().held(f"a probe in '{Path.cwd()}'", say) as handles:
        begin = time.perf_counter()
        load = wait_until_quiet(say, force=settings.force)
        launch = partial(_measure, plan, settings.limit_s, command, environment, handles)
        answers, failures = _measure_all(settings, launch, say)
        seconds = time.perf_counter() - begin
    commit, dirty = git_commit()
    first, everyone = answers[DEFAULT.name][0], [answer for several in answers.values() for answer in several]
    reasons = tuple(dict.fromkeys(reason for answer in everyone for reason in answer.invalid))
    # Whole rounds: settings are compared within a round.
    rounds = range(settings.launches)
    valid = [number for number in rounds if not any(several[number].invalid for several in answers.values())]
    if valid and reasons:
        left_out = f"{len(rounds) - len(valid)} of {len(rounds)} rounds are left out"
        failures.insert(0, f"{left_out}, in which times were not valid: {reasons[0]}")
    busy = [f"measured beside other processes that kept {load:.1f} cores busy"] if load > 1 else []
    probe = Probe(
        schema=PROBE_SCHEMA,
        measured=datetime.now(UTC),
        machine=describe_machine(gpus=()),
        mpi_library=first.mpi_library,
        launcher=shlex.join(command),
        hosts=first.hosts,
        by_setting=tuple(
            MessageCosts(
                setting=one,
                costs=fit_launches([answers[one.name][n].series for n in valid or rounds], valid=bool(valid)),
            )
            for one in (DEFAULT, *settings.settings)
            if one.name in answers
        ),
        invalid=() if valid else reasons,
        notes=(*busy, *failures, *dict.fromkeys(note for answer in everyone for note in answer.notes)),
        commit=commit,
        dirty=dirty,
        core_seconds=len(first.hosts) * seconds,
    )
    samples = [
        (name, launch, series)
        for name, several in answers.items()
        for launch, answer in enumerate(several)
        for series in answer.series
    ]
    return ProbeSamples(probe=probe, samples=tuple(samples))


def _measure_all(
    settings: ProbeSettings, launch: Callable[[Setting], ProbeResult], say: Callable[[str], None]
) -> tuple[dict[str, list[ProbeResult]], list[str]]:
    """Return what each setting's launches found, by its name, and why settings other than the default did not run."""
    every = (DEFAULT, *settings.settings)
    answers: dict[str, list[ProbeResult]] = {setting.name: [] for setting in every}
    failures = []
    for number in range(settings.launches):
        for setting in random.Random(number).sample(every, len(every)):  # drift then falls on all settings equally
            if setting.name not in answers:
                continue
            say(f"[{number + 1}/{settings.launches}] {setting.name}")
            try:
                answer = launch(setting)
            except RunError as error:
                if setting is DEFAULT:
                    raise
                failures.append(f"the setting '{setting.name}' did not run: {error}")
                del answers[setting.name]
                continue
            if settings.settings and not answer.mpi_library.startswith("Open MPI"):
                raise UserError(
                    f"--mca and --algorithms set up Open MPI, these ranks use {answer.mpi_library}: leave them out"
                )
            answers[setting.name].append(answer)
    return answers, failures


def _launcher(settings: ProbeSettings) -> tuple[tuple[str, ...], Mapping[str, str | None]]:
    """Return the words that start the ranks and what they need in the environment."""
    if settings.launcher is not None:
        words = tuple(shlex.split(settings.launcher))
        if not words:
            raise UserError("--launcher is empty: write the command that starts the ranks, such as 'mpirun -n 4'")
        return words, ONE_THREAD
    if settings.ranks < 2:
        raise UserError(f"RANKS={settings.ranks} is too small: a probe needs at least 2 ranks")
    scheduler = open_scheduler("local", oversubscribe=settings.force)
    layout = Layout(nodes=settings.ranks)
    refusal = scheduler.refusal(layout)
    if refusal:
        raise UserError(f"RANKS={settings.ranks} {refusal}: ask for fewer, or add --force to measure all the same")
    return scheduler.launcher(layout).words, {**scheduler.environment(layout), **ONE_THREAD}


def _measure(
    plan: ProbePlan,
    limit_s: float,
    command: Sequence[str],
    environment: Mapping[str, str | None],
    handles: Sequence[int],
    setting: Setting,
) -> ProbeResult:
    """Launch the measuring ranks once, under one setting of the MPI library."""
    # In the working folder, not in /tmp: rank 0 may be on another host, which shares this one.
    with tempfile.TemporaryDirectory(prefix=".harness-probe-", dir=Path.cwd()) as name:
        plan_file, answer_file = Path(name) / "plan.json", Path(name) / "answer.json"
        plan_file.write_bytes(encode(plan))
        changes = dict(environment) | {f"OMPI_MCA_{key}": value for key, value in setting.mca.items()}
        words = (*command, sys.executable, "-m", "harness.probe.measure", str(plan_file), str(answer_file))
        reply = ask(words, limit_s=limit_s, changes=changes, handles=handles)
        if not answer_file.exists():  # whatever the exit code says
            raise RunError(first_error(reply.err) or reply.last_error)
        return decode(answer_file.read_bytes(), ProbeResult, answer_file)
