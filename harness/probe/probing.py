"""Run a probe: blocks of the measuring ranks under every setting, in turns; lines fitted to what messages took.

Seconds = alpha + beta * bytes (Hockney's model).
"""

import random
import shlex
import sys
import tempfile
import time
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import nnls

from harness.analysis.stats import LEVEL, NEEDED, Interval, median_interval
from harness.base.cores import memory_limit
from harness.base.cpu_contention import wait_until_quiet
from harness.base.errors import RunError, UserError
from harness.base.hostlock import HostLock
from harness.base.processes import ONE_THREAD
from harness.base.provenance import describe_machine, git_commit
from harness.probe.measure import MessageSeries, ProbePlan, ProbeResult
from harness.schema import message_cost
from harness.schema.claim import EXPERIMENTS
from harness.schema.record import decode, encode
from harness.schema.sweep import Layout
from harness.sweep.launch_output import first_error, read_output
from harness.sweep.referee import run_block
from harness.sweep.schedulers import open_scheduler
from harness.sweep.turn_block import LaunchSpec, TurnBlock

_SMALLEST, _LARGEST = 8, 64 * 2**20
DEFAULT = message_cost.Setting(name="default", mca={})

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


def algorithm_settings() -> tuple[message_cost.Setting, ...]:
    """Return one setting for each allreduce algorithm and component of Open MPI that can be chosen by name."""
    tuned = {"coll": "^han,adapt", "coll_tuned_use_dynamic_rules": "1"}
    algorithms = tuple(
        message_cost.Setting(name=f"tuned, {name}", mca=tuned | {"coll_tuned_allreduce_algorithm": str(number)})
        for number, name in _ALGORITHMS.items()
    )
    return (
        message_cost.Setting(name="tuned, own choice", mca={"coll": "^han,adapt"}),
        *algorithms,
        message_cost.Setting(name="han", mca={"coll_han_priority": "100"}),
        message_cost.Setting(name="sm", mca={"coll_sm_priority": "100"}),
    )


def parse_settings(texts: Sequence[str]) -> tuple[message_cost.Setting, ...]:
    """Parse settings as users write them: ``pml=ob1 btl=self,sm``, one or more parameters each.

    Raises:
        UserError: a word is not NAME=VALUE.
    """
    settings = []
    for text in texts:
        words = [word.partition("=") for word in text.split()]
        if not words or not all(name and sign and value for name, sign, value in words):
            raise UserError(f"--mca '{text}' is not a setting: write NAME=VALUE, several of them with blanks between")
        settings.append(
            message_cost.Setting(name=" ".join(text.split()), mca={name: value for name, _, value in words})
        )
    return tuple(settings)


_REDUCTIONS = ("native", "messages", "node-aware")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeSettings:
    """What the user asked for. `launcher` starts the ranks; None starts `ranks` ranks on this machine's cores.

    `settings` are compared with the library's default, in so many blocks: `launches` of each, which sample in turns.
    What a user's own launcher starts may be on other hosts and does not wait for turns: it is launched one after the
    other. `largest` in bytes; `samples`, `budget_s` and `limit_s` are for one launch.
    """

    ranks: int = 2
    launcher: str | None = None
    settings: tuple[message_cost.Setting, ...] = ()
    largest: int = _LARGEST
    launches: int = 6
    samples: int = 25
    budget_s: float = 8.0
    limit_s: float = 180.0
    force: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeSamples:
    """A probe and every sample behind it, by the name of its setting and the number of the launch."""

    probe: message_cost.Probe
    samples: tuple[tuple[str, int, MessageSeries], ...]


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
    with HostLock().held(f"a probe in '{Path.cwd()}'", say) as handles:
        begin = time.perf_counter()
        load = wait_until_quiet(say, force=settings.force)
        launch = partial(_measure, plan, settings.limit_s, command, environment, handles)
        blocks, failures = _measure_all(settings, launch, say)
        seconds = time.perf_counter() - begin
    commit, dirty = git_commit()
    first, everyone = blocks[0][DEFAULT.name], [answer for block in blocks for answer in block.values()]
    reasons = tuple(dict.fromkeys(reason for answer in everyone for reason in answer.invalid))
    valid = [block for block in blocks if not any(answer.invalid for answer in block.values())]
    if valid and reasons:
        left_out = f"{len(blocks) - len(valid)} of {len(blocks)} blocks are left out"
        failures.insert(0, f"{left_out}, in which times were not valid: {reasons[0]}")
    busy = [f"measured beside other processes that kept {load:.1f} cores busy"] if load > 1 else []
    probe = message_cost.Probe(
        schema=message_cost.PROBE_SCHEMA,
        measured=datetime.now(UTC),
        machine=describe_machine(gpus=()),
        mpi_library=first.mpi_library,
        launcher=shlex.join(command),
        hosts=first.hosts,
        by_setting=tuple(
            message_cost.MessageCosts(
                setting=one,
                costs=fit_launches(
                    *([block[name].series for block in its] for name in (one.name, DEFAULT.name)), valid=bool(valid)
                ),
            )
            for one in (DEFAULT, *settings.settings)
            if (its := [block for block in valid or blocks if one.name in block])
        ),
        invalid=() if valid else reasons,
        notes=(*busy, *failures, *dict.fromkeys(note for answer in everyone for note in answer.notes)),
        commit=commit,
        dirty=dirty,
        core_seconds=len(first.hosts) * seconds,
    )
    samples = [
        (name, launch, series)
        for launch, block in enumerate(blocks)
        for name, answer in block.items()
        for series in answer.series
    ]
    return ProbeSamples(probe=probe, samples=tuple(samples))


Answers = dict[str, ProbeResult]
_RANK_BYTES = 2**30  # TensorFlow, the largest message and two buffers of it


def _measure_all(
    settings: ProbeSettings,
    launch: Callable[[Sequence[message_cost.Setting]], tuple[Answers, dict[str, str]]],
    say: Callable[[str], None],
) -> tuple[list[Answers], list[str]]:
    """Return what each block found by the names of settings, and why settings other than the default did not run.

    Blocks have all settings, or as many as the memory holds beside the default.
    """
    most = max(1, memory_limit() // (settings.ranks * _RANK_BYTES) - 1)
    blocks, failures = list[Answers](), dict[str, str]()
    for number in range(settings.launches):
        others = [one for one in settings.settings if one.name not in failures]
        order = random.Random(number).sample(others, len(others))
        if settings.launcher is None:
            together = [[DEFAULT, *order[part : part + most]] for part in range(0, len(order) or 1, most)]
        else:
            together = [[one] for one in random.Random(number).sample([DEFAULT, *others], 1 + len(others))]
        found = []
        for sets in together:
            say(f"[{number + 1}/{settings.launches}] {' | '.join(one.name for one in sets)}")
            answers, errors = launch(sets)
            if DEFAULT.name in errors:
                raise RunError(errors[DEFAULT.name])
            failures |= errors
            found.append(answers)
            other = next(
                (one.mpi_library for one in answers.values() if not one.mpi_library.startswith("Open MPI")), ""
            )
            if settings.settings and other:
                raise UserError(f"--mca and --algorithms set up Open MPI, these ranks use {other}: leave them out")
        blocks += found if settings.launcher is None else [dict(ChainMap(*found))]
    kept = [{name: answer for name, answer in block.items() if name not in failures} for block in blocks]
    return kept, [f"the setting '{name}' did not run: {reason}" for name, reason in failures.items()]


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
    settings: Sequence[message_cost.Setting],
) -> tuple[Answers, dict[str, str]]:
    """Launch the measuring ranks once under each of the `settings`, in turns; return answers and errors by name."""
    # In the working folder, not in /tmp: rank 0 may be on another host, which shares this one.
    with tempfile.TemporaryDirectory(prefix=".harness-probe-", dir=Path.cwd()) as name:
        plan_file, limit = Path(name) / "plan.json", limit_s * len(settings)
        plan_file.write_bytes(encode(replace(plan, in_turns=len(settings) > 1)))
        words = ("timeout", "-k", "5", f"{limit:g}", *command, sys.executable, "-m", "harness.probe.measure")
        files = {one.name: Path(name) / f"{number}.json" for number, one in enumerate(settings)}
        sets = tuple(
            LaunchSpec(
                name=one.name,
                words=(*words, str(plan_file), str(files[one.name])),
                log=str(files[one.name].with_suffix(".log")),
                changes={**environment, **{f"OMPI_MCA_{key}": value for key, value in one.mca.items()}},
            )
            for one in settings
        )
        codes = run_block(TurnBlock(name="probe", launches=sets), pass_fds=tuple(handles)).codes
        late = f"no answer within {limit:.0f} s"
        errors = {
            key: first_error(read_output(file.with_suffix(".log")))
            or (late if codes[key] == 124 else f"its ranks ended with {codes[key]} and no answer")
            for key, file in files.items()
            if not file.exists()  # whatever the exit code says
        }
        return {
            key: decode(file.read_bytes(), ProbeResult, file) for key, file in files.items() if file.exists()
        }, errors


_RESAMPLES = 400
_SEED = 0

Array = npt.NDArray[np.float64]


def fit_launches(
    launches: Sequence[Sequence[MessageSeries]], usual: Sequence[Sequence[MessageSeries]] = (), *, valid: bool = True
) -> tuple[message_cost.MessageCost, ...]:
    """Return the cost of every operation and level in the series of several launches.

    `usual` are the launches of the default setting in the same blocks, which allreduces are compared with; there are no
    intervals if they are not `valid`.
    """
    groups: dict[tuple[str, str, int], dict[int, list[float]]] = {}
    ratios: dict[tuple[str, str, int], dict[int, tuple[float, ...]]] = {}
    for number, launch in enumerate(launches):
        for one in launch:
            key, found = (one.operation, one.level, one.ranks), _log_ratio(one, usual[number] if usual else ())
            groups.setdefault(key, {}).setdefault(one.bytes, []).append(float(np.median(one.seconds)))
            own = ratios.setdefault(key, {})
            own[one.bytes] = own.get(one.bytes, ()) + (() if found is None else (found,))
    return tuple(fit_cost(*key, samples, ratios[key], valid=valid) for key, samples in groups.items())


def _log_ratio(one: MessageSeries, usual: Sequence[MessageSeries]) -> float | None:
    """Return the median log ratio of an allreduce to the first way of `usual`, over the turns in which both sampled.

    Sample by sample, of launches that took no turns or had none of the same round.
    """
    ways = {way.operation: way for way in usual if (way.level, way.bytes) == (one.level, one.bytes)}
    first = next(
        (way for name, way in ways.items() if name.startswith(message_cost.REDUCTION)), ways.get(message_cost.ALLREDUCE)
    )
    if first is None or not one.operation.startswith((message_cost.REDUCTION, message_cost.ALLREDUCE)):
        return None
    ours, theirs = (pd.Series(np.log(series.seconds)) for series in (one, first))
    if one.turns and first.turns:
        in_turns = [
            times[numbers > 0].groupby(numbers[numbers > 0]).median()  # 0: the first of a turn
            for times, numbers in ((ours, np.array(one.turns)), (theirs, np.array(first.turns)))
        ]
        ratios = (in_turns[0] - in_turns[1]).dropna()
        if len(ratios):
            return float(ratios.median())
    return float((ours - theirs).median())


def fit_cost(
    operation: str,
    level: str,
    ranks: int,
    samples: Mapping[int, Sequence[float]],
    ratios: Mapping[int, tuple[float, ...]] | None = None,
    *,
    valid: bool = True,
) -> message_cost.MessageCost:
    """Return the cost that the `samples` of an operation show: seconds by bytes, at least two sizes.

    There is one sample of every launch, its median: calls of one launch are not independent. The line is fitted to
    the medians, every size with the same relative weight and neither part below zero. Its intervals are percentiles
    of fits to resampled launches (bootstrap, seeded); None below 6 launches, and where
    they are not `valid`.
    """
    sizes = np.array(sorted(samples), dtype=float)
    values = [np.asarray(samples[int(size)], dtype=float) for size in sizes]
    medians = np.array([np.median(sample) for sample in values])
    alpha, beta = _line(sizes, medians)
    intervals = _intervals(sizes, values) if valid else (None, None)
    errors = np.abs((alpha + beta * sizes) / medians - 1)
    worst = int(errors.argmax())
    return message_cost.MessageCost(
        operation=operation,
        level=level,
        ranks=ranks,
        alpha_s=_estimate(alpha, intervals[0]),
        beta_s_per_byte=_estimate(beta, intervals[1]),
        worst_error=float(errors[worst]),
        worst_bytes=int(sizes[worst]),
        sizes=tuple(
            message_cost.MessageTime(
                bytes=int(size),
                launches=tuple(map(float, sample)),
                seconds=_estimate(np.median(sample), median_interval(sample) if valid else None),
                ratios=(ratios or {}).get(int(size), ()),
            )
            for size, sample in zip(sizes, values, strict=True)
        ),
    )


def _line(sizes: Array, seconds: Array) -> tuple[float, float]:
    """Return alpha and beta of the least squares of relative errors, both at least 0."""
    unit = sizes.max()  # alpha and beta differ by ten orders of magnitude: scaled, they do not
    matrix = np.column_stack([np.ones_like(sizes), sizes / unit]) / seconds[:, None]
    scale = matrix.max(axis=0)
    (alpha, beta), _ = nnls(matrix / scale, np.ones_like(seconds))
    return float(alpha / scale[0]), float(beta / scale[1] / unit)


def _intervals(sizes: Array, values: Sequence[Array]) -> tuple[Interval | None, Interval | None]:
    if min(len(sample) for sample in values) < NEEDED:
        return None, None
    generator = np.random.default_rng(_SEED)
    launches = np.array(values)
    chosen = generator.integers(launches.shape[1], size=(_RESAMPLES, launches.shape[1]))
    drawn = np.median(launches[:, chosen], axis=2).T
    lines = np.array([_line(sizes, medians) for medians in drawn])
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(lines, [tail, 100 - tail], axis=0)
    return Interval(low=float(low[0]), high=float(high[0])), Interval(low=float(low[1]), high=float(high[1]))


def _estimate(value: float | np.float64, interval: Interval | None) -> message_cost.Estimate:
    value = float(value)
    if interval is None:
        return message_cost.Estimate(value=value)
    return message_cost.Estimate(value=value, low=min(interval.low, value), high=max(interval.high, value))
