"""Run a probe: blocks of the measuring ranks under every setting, in turns."""

import random
import shlex
import sys
import tempfile
import time
from collections import ChainMap
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from harness.base.cores import memory_limit
from harness.base.cpu_contention import wait_until_quiet
from harness.base.errors import RunError, UserError
from harness.base.hostlock import HostLock
from harness.base.processes import ONE_THREAD
from harness.base.provenance import describe_machine, git_commit
from harness.base.setting_names import setting
from harness.probe.measuring_ranks import MessageSeries, ProbePlan, ProbeResult
from harness.probe.message_fit import fit_launches
from harness.schema.claim import EXPERIMENTS
from harness.schema.layout import Layout
from harness.schema.message_cost import (
    PROBE_SCHEMA,
    MessageCosts,
    Probe,
    Setting,
)
from harness.schema.record import decode, encode
from harness.sweep.launch_command import first_error, read_output
from harness.sweep.referee import run_block
from harness.sweep.schedulers import open_scheduler
from harness.sweep.turn_block import LaunchSpec, TurnBlock

_SMALLEST = 8
_LARGEST = 64 * 2**20
_REDUCTIONS = ("native", "messages", "node-aware")
_LIMIT_S = 180.0  # of a launch
_RANK_BYTES = 2**30  # TensorFlow, the largest message and two buffers of it
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
        raise UserError(f"{setting('largest', largest)} is too small: use at least 1024 bytes")
    sizes = {_SMALLEST << power for power in range(64)} | {
        experiment.weights_bytes for experiment in EXPERIMENTS.values()
    }
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
            raise UserError(
                f"{setting('mca', text)} is not a setting: write NAME=VALUE, several of them with blanks between"
            )
        settings.append(Setting(name=" ".join(text.split()), mca={name: value for name, _, value in words}))
    return tuple(settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeSettings:
    """What the user asked for. `launcher` starts the ranks; None starts `ranks` ranks on this machine's cores.

    `settings` are compared with the library's default, in `launches` blocks. Each has a launch of every setting, and
    these sample in turns. What a user's own launcher starts may be on other hosts and does not wait for turns: it is
    launched one after the other. `largest` in bytes; `samples` and `budget_s` are for one launch.
    """

    ranks: int = 2
    launcher: str | None = None
    settings: tuple[Setting, ...] = ()
    largest: int = _LARGEST
    launches: int = 6
    samples: int = 25
    budget_s: float = 8.0
    force: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeSamples:
    """A probe and every sample that it rests on, by the name of its setting and the number of the launch."""

    probe: Probe
    samples: tuple[tuple[str, int, MessageSeries], ...]


Answers = dict[str, ProbeResult]
"""What the ranks of one block answered, by the name of the setting."""


def run_probe(settings: ProbeSettings, say: Callable[[str], None]) -> ProbeSamples:
    """Measure under every setting, when no sweep or other probe is being measured on this host.

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
    with HostLock().held("a probe", say) as handles:
        begin = time.perf_counter()
        load = wait_until_quiet(say, force=settings.force)
        launch = partial(measure_settings, plan, command, environment, handles)
        blocks, failures = _measure_all(settings, launch, say)
        seconds = time.perf_counter() - begin
    commit, dirty = git_commit()
    default = blocks[0][DEFAULT.name]
    answers = [answer for block in blocks for answer in block.values()]
    reasons = tuple(dict.fromkeys(reason for answer in answers for reason in answer.invalid))
    valid = [block for block in blocks if _is_valid(block)]
    notes = [f"measured beside other processes that kept {load:.1f} cores busy"] if load > 1 else []
    if valid and reasons:
        left_out = f"{len(blocks) - len(valid)} of {len(blocks)} blocks are left out"
        notes.append(f"{left_out}, in which times were not valid: {reasons[0]}")
    notes += failures
    notes += dict.fromkeys(note for answer in answers for note in answer.notes)
    probe = Probe(
        schema=PROBE_SCHEMA,
        measured=datetime.now(UTC),
        machine=describe_machine(gpus=()),
        mpi_library=default.mpi_library,
        launcher=shlex.join(command),
        hosts=default.hosts,
        by_setting=tuple(_costs_by_setting((DEFAULT, *settings.settings), valid or blocks, valid=bool(valid))),
        invalid=() if valid else reasons,
        notes=tuple(notes),
        commit=commit,
        dirty=dirty,
        core_seconds=len(default.hosts) * seconds,
    )
    return ProbeSamples(probe=probe, samples=tuple(_all_samples(blocks)))


def _all_samples(blocks: Sequence[Answers]) -> Iterator[tuple[str, int, MessageSeries]]:
    for launch, block in enumerate(blocks):
        for name, answer in block.items():
            yield from ((name, launch, series) for series in answer.series)


def _costs_by_setting(settings: Sequence[Setting], blocks: Sequence[Answers], *, valid: bool) -> Iterator[MessageCosts]:
    """Yield the costs under each setting that has launches in `blocks`; no intervals if these are not `valid`."""
    for tried in settings:
        answered = [block for block in blocks if tried.name in block]
        if answered:
            launches = [block[tried.name].series for block in answered]
            usual = [block[DEFAULT.name].series for block in answered]
            yield MessageCosts(setting=tried, costs=fit_launches(launches, usual, valid=valid))


def _measure_all(
    settings: ProbeSettings,
    launch: Callable[[Sequence[Setting]], tuple[Answers, dict[str, str]]],
    say: Callable[[str], None],
) -> tuple[list[Answers], list[str]]:
    """Return the answers of each block, and why settings other than the default did not run.

    Blocks have all settings, or as many as the memory holds beside the default.
    """
    blocks: list[Answers] = []
    failures: dict[str, str] = {}
    for number in range(settings.launches):
        others = [setting for setting in settings.settings if setting.name not in failures]
        answers_of_sets = []
        for together in _sets_together(settings, others, random.Random(number)):
            say(f"[{number + 1}/{settings.launches}] {' | '.join(setting.name for setting in together)}")
            answers, errors = launch(together)
            if DEFAULT.name in errors:
                raise RunError(errors[DEFAULT.name])
            failures |= errors
            answers_of_sets.append(answers)
            if settings.settings:
                _refuse_other_libraries(answers)
        blocks += answers_of_sets if settings.launcher is None else [dict(ChainMap(*answers_of_sets))]
    successful = [_without(block, failures) for block in blocks]
    return successful, [f"the setting '{name}' did not run: {reason}" for name, reason in failures.items()]


def _sets_together(settings: ProbeSettings, others: Sequence[Setting], generator: random.Random) -> list[list[Setting]]:
    """Return which settings are launched at once, in random order: each set also has the default, which comes first.

    A user's own launcher starts one setting at a time.
    """
    if settings.launcher is not None:
        return [[setting] for setting in generator.sample([DEFAULT, *others], 1 + len(others))]
    most = max(1, memory_limit() // (settings.ranks * _RANK_BYTES) - 1)
    order = generator.sample(others, len(others))
    return [[DEFAULT, *order[start : start + most]] for start in range(0, len(order) or 1, most)]


def _refuse_other_libraries(answers: Answers) -> None:
    for answer in answers.values():
        if not answer.mpi_library.startswith("Open MPI"):
            library = answer.mpi_library
            raise UserError(
                f"{setting('mca')} and {setting('algorithms', True)} set up Open MPI, these ranks use {library}: "
                "leave them out"
            )


def _is_valid(block: Answers) -> bool:
    return not any(answer.invalid for answer in block.values())


def _without(block: Answers, failures: Container[str]) -> Answers:
    return {name: answer for name, answer in block.items() if name not in failures}


def _launcher(settings: ProbeSettings) -> tuple[tuple[str, ...], Mapping[str, str | None]]:
    """Return the words that start the ranks and what they need in the environment."""
    if settings.launcher is not None:
        words = tuple(shlex.split(settings.launcher))
        if not words:
            raise UserError(
                f"{setting('launcher')} is empty: write the command that starts the ranks, such as 'mpirun -n 4'"
            )
        return words, ONE_THREAD
    if settings.ranks < 2:
        raise UserError(f"{setting('ranks', settings.ranks)} is too small: a probe needs at least 2 ranks")
    scheduler = open_scheduler("local", oversubscribe=settings.force)
    layout = Layout(nodes=settings.ranks)
    refusal = scheduler.refusal(layout)
    if refusal:
        raise UserError(
            f"{setting('ranks', settings.ranks)} {refusal}: ask for fewer, or add {setting('force', True)} to "
            "measure all the same"
        )
    return scheduler.launcher(layout).words, {**scheduler.environment(layout), **ONE_THREAD}


def measure_settings(
    plan: ProbePlan,
    command: Sequence[str],
    environment: Mapping[str, str | None],
    handles: Sequence[int],
    settings: Sequence[Setting],
) -> tuple[Answers, dict[str, str]]:
    """Launch the measuring ranks once under each of the `settings`, in turns; return answers and errors by name."""
    # In the working folder, not in /tmp: rank 0 may be on another host, which shares this one.
    with tempfile.TemporaryDirectory(prefix=".harness-probe-", dir=Path.cwd()) as name:
        folder = Path(name)
        plan_file = folder / "plan.json"
        limit = _LIMIT_S * len(settings)
        plan_file.write_bytes(encode(replace(plan, in_turns=len(settings) > 1)))
        words = ("timeout", "-k", "5", f"{limit:g}", *command, sys.executable, "-m", "harness.probe.measuring_ranks")
        files = {setting.name: folder / f"{number}.json" for number, setting in enumerate(settings)}
        launches = []
        for setting in settings:
            file = files[setting.name]
            launch = LaunchSpec(
                name=setting.name,
                words=(*words, str(plan_file), str(file)),
                log=str(file.with_suffix(".log")),
                changes={**environment, **{f"OMPI_MCA_{key}": value for key, value in setting.mca.items()}},
            )
            launches.append(launch)
        codes = run_block(TurnBlock(name="probe", launches=tuple(launches)), pass_fds=tuple(handles)).codes
        answers: Answers = {}
        errors: dict[str, str] = {}
        for setting_name, file in files.items():
            if file.exists():  # whatever the exit code says
                answers[setting_name] = decode(file.read_bytes(), ProbeResult, file)
            else:
                errors[setting_name] = _why_no_answer(file.with_suffix(".log"), codes[setting_name], limit)
        return answers, errors


def _why_no_answer(log: Path, code: int, limit_s: float) -> str:
    """Return the first error in a launch's log, else what its exit `code` says; 124 is that of `timeout`."""
    error = first_error(read_output(log))
    if error:
        return error
    return f"no answer within {limit_s:.0f} s" if code == 124 else f"its ranks ended with {code} and no answer"
