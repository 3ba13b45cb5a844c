"""Measurements: the launches of one state of the code on one machine, and how they are joined, split and named."""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.analysis import units
from harness.analysis.launch_frames import launch_frame
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.sessions import EFFICIENCY, STEP, sessions
from harness.analysis.sync_calls import read_calls
from harness.analysis.turn_blocks import BlockTimes
from harness.analysis.useful_time import LaunchTimes, UsefulRanks, UsefulTime, useful_ranks
from harness.base.errors import UserError
from harness.base.provenance import Machine
from harness.base.record_words import HOST, check_text
from harness.schema.layout import Layout, layout_order
from harness.schema.record import RunRecord, Versions, decode_file, read_run
from harness.schema.sweep import Study
from harness.schema.sweep_folder import LaunchFolder, SweepFolder
from harness.schema.workload import Workload

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Software(Versions):
    """The code that ran. `code` is `Point.code`: it, and no commit, tells whether two launches ran the same."""

    code: str

    @property
    def state(self) -> str:
        """The same for launches of the same code and versions, whatever their commits."""
        return self.code or msgspec.json.encode(self).decode()


_SHORTEST_S = 1e-9
_LONGEST_S = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class HostTime:
    """A host of a launch: the useful seconds of a row of its ranks, their mean, None where that is not known."""

    name: str
    row_seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is no host or no time, as a file that was edited may have.

        Raises:
            UserError: it names the field and the value.
        """
        check_text("host", self.name, HOST)
        if self.row_seconds is not None and not 0 < self.row_seconds <= _LONGEST_S:
            raise UserError(f"row_seconds {self.row_seconds:g} of host {self.name} are no time of a row")


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLaunch:
    """One valid launch in numbers; times in seconds of one epoch, medians over the launch's epochs.

    `seconds` is the maximum over ranks. `rows` is what one epoch visits over all ranks, in so many `steps`. `useful` is
    None where single synchronisation calls have no times. `test_accuracy` is of the last epoch, None where it was not
    evaluated. `hosts` are empty where they are not known. `other_cores` are those that other processes kept busy during
    the timed epochs, on the host where that was most, None where that is not known; `met` says that this, or waiting
    for a core, took some of what its ranks need.
    """

    layout: Layout
    repeat: int
    started: datetime
    ended: datetime
    rows: int
    steps: int
    seconds: float
    useful: UsefulTime | None = None
    test_accuracy: float | None = None
    hosts: tuple[HostTime, ...] = ()
    other_cores: float | None = None
    met: bool = False

    def __post_init__(self) -> None:
        """Refuse what has no logarithm or no order in time, as a file that was edited may have.

        Raises:
            UserError: it names the field and the value.
        """
        for name in ("rows", "steps"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)} of a launch is too small: it is at least 1")
        if not _SHORTEST_S <= self.seconds <= _LONGEST_S:
            raise UserError(f"seconds {self.seconds:g} of a launch are no time of an epoch")
        for name in ("started", "ended"):
            if getattr(self, name).tzinfo is None:
                raise UserError(f"{name} {getattr(self, name)} of a launch has no time zone: write Z behind it for UTC")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The valid launches of one workload, of one state of the code, on one machine, in order of their start.

    `data_id` and `scaling` are those of `Point`. `label` is how a reader names it. `excluded` counts the launches of
    this state that are left out: not valid, or of contended blocks. `met` counts the valid ones that trained in turns
    beside other work. `contended`: all that is valid is of contended blocks. `in_turns` says whether all trained in
    turns. `settings` are those of `Point`, `conditions` what else of the host, the MPI library and the environment a
    launch's speed depends on, by name.
    """

    label: str
    workload: Workload
    scaling: str
    data_id: str
    data_kind: str
    machine: Machine
    software: Software
    reductions: tuple[str, ...]
    launches: tuple[MeasuredLaunch, ...]
    excluded: int = 0
    met: int = 0
    contended: bool = False
    in_turns: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    conditions: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """The state of the code as people write it: the harness's commit in twelve digits.

        After a plus sign come digits of `Software.code` where the commit does not name all that ran: files differed
        from it, or a script or MODEL of the user's own ran.
        """
        code = self.software.code[:6]
        commit = self.software.commit[:12] or "no commit"
        ran_user_code = self.workload.script or self.workload.own_modules
        return f"{commit}+{code}" if self.software.dirty or (ran_user_code and code) else commit

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts that were launched, fewest ranks first."""
        return tuple(sorted({launch.layout for launch in self.launches}, key=layout_order))

    def is_same_study(self, peer: "Measurement") -> bool:
        """Say whether both trained the same workload on the same data under the same scaling."""
        return (self.workload, self.scaling, self.data_id) == (peer.workload, peer.scaling, peer.data_id)

    def is_same_machine(self, peer: "Measurement") -> bool:
        """Say whether both were measured on machines that are alike."""
        return self.machine.fingerprint == peer.machine.fingerprint

    def of(self, layout: Layout) -> tuple[MeasuredLaunch, ...]:
        """Return the launches of `layout` in order of their start."""
        return tuple(launch for launch in self.launches if launch.layout == layout)

    @property
    def newest(self) -> datetime:
        """When the last launch started."""
        return max(launch.started for launch in self.launches)

    @property
    def other_cores(self) -> float:
        """The cores that other processes kept busy, the mean over the launches; 0 where no launch tells it."""
        cores = [launch.other_cores for launch in self.launches if launch.other_cores is not None]
        return sum(cores) / len(cores) if cores else 0.0


def software(run: RunRecord) -> Software:
    """Return the code and versions of a launch."""
    versions = {field.name: getattr(run.provenance, field.name) for field in fields(Versions)}
    return Software(code=run.point.code, **versions)


def measurements(loaded: Loaded, label: str, *, contended_too: bool = False) -> tuple[Measurement, ...]:
    """Return one measurement for every state of code and machine in `loaded`, the newest first.

    Launches of contended blocks (`_contended_launches`) are left out, and so is a state without another valid launch,
    but with `contended_too`: then it has these, with times including interference, and is `contended`.
    """
    rows = _launch_rows(loaded)
    contended = _contended_launches(rows)
    states: dict[tuple[str, str], list[RunRecord]] = {}
    for run in sorted(loaded.runs, key=lambda run: run.started):
        states.setdefault((run.provenance.machine.fingerprint, software(run).state), []).append(run)
    measured = []
    for runs in states.values():
        valid = [run for run in runs if not run.invalid]
        counted = [run for run in valid if run.point.folder not in contended]
        all_contended = not counted and contended_too
        counted = valid if all_contended else counted
        if counted:
            measured.append(
                _measurement(
                    loaded, counted, rows, label, excluded=len(runs) - len(counted), all_contended=all_contended
                )
            )
    return tuple(sorted(measured, key=lambda measurement: measurement.newest, reverse=True))


_Rows = Mapping[str, Mapping[Hashable, Any]]


def _launch_rows(loaded: Loaded) -> _Rows:
    """Return the rows of the valid launches (`launch_frame`), by their folders."""
    if not loaded.valid:
        return {}
    return {str(row["run"]): row for row in launch_frame(loaded.valid, loaded.epochs).to_dict("records")}


def _contended_launches(rows: _Rows) -> frozenset[str]:
    """Return the folders of launches in blocks of which other work met nearly every round.

    Such a block has no time without that work, and says nothing of what is compared. A block of too few rounds has
    none either, but for another reason.
    """
    contended = set()
    for folder, row in rows.items():
        block = row["turn_block"]
        if isinstance(block, BlockTimes) and not block.undisturbed and not block.is_short:
            contended.add(folder)
    return frozenset(contended)


def join_measurements(measurement: Measurement, added: Measurement) -> Measurement:
    """Return `measurement` with the launches of `added`, in order of their start; no repeat has launches of both."""
    offset = 1 + max((launch.repeat for launch in measurement.launches), default=-1)
    renumbered = [replace(launch, repeat=launch.repeat + offset) for launch in added.launches]
    launches = sorted((*measurement.launches, *renumbered), key=lambda launch: launch.started)
    return replace(measurement, launches=tuple(launches))


def without(measurement: Measurement, excluded: Measurement) -> Measurement:
    """Return `measurement` without the launches that `excluded` holds too."""
    taken = {(launch.layout, launch.started) for launch in excluded.launches}
    left = tuple(launch for launch in measurement.launches if (launch.layout, launch.started) not in taken)
    return replace(measurement, launches=left, met=sum(launch.met for launch in left))


def group_by_code(measured: Iterable[Measurement]) -> list[Measurement]:
    """Return one measurement for each state of the code, each launch once, in order of first appearance."""
    by_state: dict[str, Measurement] = {}
    for measurement in measured:
        state = measurement.software.state
        if state in by_state:
            by_state[state] = join_measurements(by_state[state], without(measurement, by_state[state]))
        else:
            by_state[state] = measurement
    return list(by_state.values())


_VERSIONS = ("tensorflow", "keras", "mpi_library", "mpi4py", "numpy", "python", "harness")


def state_names(states: Sequence[Measurement]) -> tuple[str, ...]:
    """Return a name for each of `states`: its commit, and where others have the same the versions that differ."""
    namesakes: dict[str, list[Measurement]] = {}
    for state in states:
        namesakes.setdefault(state.state, []).append(state)
    return tuple(_state_name(state, namesakes[state.state]) for state in states)


def _state_name(state: Measurement, namesakes: Sequence[Measurement]) -> str:
    """Return the name of `state`, which is one of its `namesakes` of the same commit."""
    differing = [name for name in _VERSIONS if not _are_alike(namesakes, name)]
    details = ", ".join(f"{name.replace('_', ' ')} {getattr(state.software, name)}" for name in differing)
    if len(namesakes) > 1 and not differing:
        details = f"code {state.software.code}"
    return f"{state.state} ({details})" if details else state.state


def _are_alike(measured: Sequence[Measurement], version: str) -> bool:
    """Say whether all of `measured` ran with the same `version`, such as ``numpy``."""
    return len({getattr(measurement.software, version) for measurement in measured}) == 1


# The stack: everything that may have changed between two sessions, and what of it has.

_STACK_VERSIONS = ("python", "tensorflow", "keras", "numpy", "mpi4py", "mpi_library")
_OF_MANY_LINES = 160  # characters of a value that is shown


@dataclass(frozen=True, kw_only=True, slots=True)
class StackLine:
    """One part of the stack, as it was in the baseline and as it is now; an empty text where it was not set."""

    name: str
    before: str
    now: str

    @property
    def changed(self) -> bool:
        """Whether it differs."""
        return self.before != self.now


def stack_of(measurement: Measurement) -> dict[str, str]:
    """Return the parts of the stack by name: machine, code, versions, settings."""
    machine = measurement.machine
    software = measurement.software
    versions = {name.replace("_", " "): str(getattr(software, name)) for name in _STACK_VERSIONS}
    facts = {
        "host": machine.hostname,
        "processor": f"{machine.cpu}, {machine.cores} cores",
        "memory": f"{machine.memory_bytes / 2**30:.0f} GiB",
        "GPUs": ", ".join(machine.gpus),
        "harness": f"{software.harness}, commit {measurement.state}",
        "code of harness and script": software.code[:12],
        "script": str(measurement.workload.script.path) if measurement.workload.script else "",
        **versions,
        **measurement.conditions,
    }
    return {name: value[:_OF_MANY_LINES] for name, value in facts.items() if value}


def compare_stacks(before: Measurement, now: Measurement) -> tuple[StackLine, ...]:
    """Return every part of both stacks, what changed first."""
    old = stack_of(before)
    new = stack_of(now)
    lines = [StackLine(name=name, before=old.get(name, ""), now=new.get(name, "")) for name in (old | new)]
    return tuple(sorted(lines, key=lambda line: not line.changed))


def version_changes(before: Measurement, now: Measurement) -> tuple[tuple[str, str, str], ...]:
    """Return name, old and new value of every version of Python and its packages, and of MPI, that differs."""
    changes = [
        (name, str(getattr(before.software, name)), str(getattr(now.software, name))) for name in _STACK_VERSIONS
    ]
    return tuple((name.replace("_", " "), old, new) for name, old, new in changes if old != new)


def measured_in(folder: Path, label: str, commit: str | None, *, contended_too: bool = False) -> Measurement:
    """Return what the sweep, or the single launch, in `folder` measured: of the newest state of its code.

    `commit` chooses another state by its first digits; `label` is how a reader names the measurement. `contended_too`
    is as in `measurements`.

    Raises:
        UserError: the study file is damaged, or there is no valid launch, or none of that commit.
    """
    decode_file(SweepFolder(folder).study, Study)
    single = LaunchFolder(folder).is_recorded
    loaded = load_sweep(folder.resolve().parent if single else folder, every_code=True)
    if single:
        runs = tuple(run for run in loaded.runs if run.point.folder == folder.resolve().name)
        loaded = replace(loaded, runs=runs, failures=())
    measured = measurements(loaded, label, contended_too=contended_too)
    if not measured:
        if contended := _contended_launches(_launch_rows(loaded)):
            raise UserError(
                f"'{folder}' has nothing to judge by: other work met nearly all rounds of {len(contended)} launches; "
                "run it again while the machine does nothing else"
            )
        why = f"{len(loaded.runs)} invalid, {len(loaded.damaged)} damaged, {len(loaded.failures)} failed"
        raise UserError(f"'{folder}' holds no valid launch ({why}): run `harness sweep` first")
    if commit is None:
        return measured[0]
    for measurement in measured:
        names = (measurement.state, measurement.software.commit, measurement.software.code)
        if commit and any(name.startswith(commit) for name in names):
            return measurement
    have = ", ".join(dict.fromkeys(state_names(measured)))
    raise UserError(f"'{label}': no valid launch of commit '{commit}' in '{folder}', there are of {have}")


def _measurement(
    loaded: Loaded, valid: Sequence[RunRecord], rows: _Rows, label: str, *, excluded: int, all_contended: bool
) -> Measurement:
    first = valid[0]
    return Measurement(
        label=label,
        workload=loaded.study.sweep.workload if loaded.study else first.point.workload,
        scaling=first.point.scaling,
        data_id=first.point.data_id,
        data_kind=first.data.kind,
        machine=first.provenance.machine,
        software=software(first),
        reductions=tuple(sorted({run.provenance.reduction for run in valid if run.point.layout.ranks > 1})),
        launches=tuple(_launches(loaded, valid, rows)),
        excluded=excluded,
        met=sum(bool(run.met) for run in valid),
        contended=all_contended,
        in_turns=all(run.block for run in valid),
        settings=first.point.settings,
        conditions=_conditions(max(valid, key=lambda run: (run.point.layout.ranks, run.started))),
    )


def _conditions(run: RunRecord) -> dict[str, str]:
    """Return what besides versions and the machine's parts decides how fast a launch is, by name."""
    provenance = run.provenance
    facts = {"kernel": provenance.machine.os, "launcher": provenance.launcher, "reduction": provenance.algorithm}
    return {
        **{name: value for name, value in facts.items() if value},
        **provenance.gpu_software,
        **provenance.system,
        **provenance.environment,
        **dict(run.point.settings),
    }


def _launches(loaded: Loaded, runs: Sequence[RunRecord], rows: _Rows) -> Iterable[MeasuredLaunch]:
    for run in runs:
        row = rows[run.point.folder]
        accuracy = float(row["test_accuracy"])
        times = LaunchTimes(seconds=float(row["seconds"]), recorded_seconds=float(row["recorded_seconds"]))
        useful = _useful_ranks(loaded, run, times)
        yield MeasuredLaunch(
            layout=run.point.layout,
            repeat=run.point.repeat,
            started=run.started,
            ended=run.ended,
            rows=int(row["rows"]),
            seconds=float(row["seconds"]),
            steps=run.steps_per_epoch,
            useful=useful.time if useful else None,
            test_accuracy=accuracy if accuracy == accuracy else None,
            hosts=_hosts(run, useful.by_rank if useful else None),
            other_cores=run.provenance.other_load,
            met=run.met,
        )


def _useful_ranks(loaded: Loaded, run: RunRecord, times: LaunchTimes) -> UsefulRanks | None:
    """Return the useful time of `run` in its timed epochs, None where its synchronisation calls have no times."""
    if not run.sums_timed or run.losses:
        return None
    launch = loaded.folder / run.point.folder
    try:
        timed_run = read_run(launch).as_timed()
        epochs = read_calls(launch, timed_run)
    except UserError:  # of an older harness: the whole is known, its factors are not
        return None
    for record, calls in zip(timed_run.epochs, epochs, strict=True):
        if max(record.sync_seconds) > 0 and not len(calls.entry):
            return None
    return useful_ranks(epochs, timed_run, times, loaded.blocks.get(run.block))


def _hosts(run: RunRecord, useful: Values | None) -> tuple[HostTime, ...]:
    """Return the hosts of `run` in order of their ranks; `useful` are the useful seconds of an epoch by rank."""
    if useful is None or min(useful) <= 0 or not all(rank.rows for rank in run.ranks):
        names = dict.fromkeys(rank.host for rank in run.ranks)
        return tuple(HostTime(name=name) for name in names)
    by_host: dict[str, list[float]] = {}
    for rank in run.ranks:
        by_host.setdefault(rank.host, []).append(float(useful[rank.rank]) / rank.rows)
    return tuple(HostTime(name=host, row_seconds=sum(times) / len(times)) for host, times in by_host.items())


# The costs of a measurement: one number for each launch and quantity, the natural logarithm of a time or of its ratio
# to another. 0.1 more is a slowdown of about 10 %.

TIME = "epoch time"
CURVE = "curve"


@dataclass(frozen=True, kw_only=True, slots=True)
class CostSample:
    """One quantity at one layout (None: over all of them). `costs` [launches or repeats], in order of time.

    `value` is what a reader sees: seconds for `TIME`, a fraction for `EFFICIENCY` and `CURVE`.
    """

    quantity: str
    layout: Layout | None
    costs: Values
    value: float

    @property
    def key(self) -> tuple[str, Layout | None]:
        """What two measurements' samples are matched by."""
        return self.quantity, self.layout


def quantity_value(quantity: str, value: float) -> str:
    """Return a quantity's value with its unit: seconds, or per cent."""
    return units.seconds(value) if quantity.startswith((TIME, STEP)) else units.percent(value, 1)


def as_cost(slowdown: float) -> float:
    """Return the step up in cost that takes `slowdown` (fraction below 1) of the speed or efficiency."""
    return -math.log(1 - slowdown)


def as_slowdown(distance: float) -> float:
    """Return the part of the speed or efficiency that a step up of `distance` in cost takes."""
    return 1 - math.exp(-distance)


def samples(measurement: Measurement, layouts: Sequence[Layout]) -> tuple[CostSample, ...]:
    """Return the samples of `measurement` at `layouts`, fewest ranks first; the first one is the base.

    Efficiency is of launches of the same repeat and session, which ran close to each other, so that the machine's drift
    falls out of it.
    """
    cost_samples: list[CostSample] = []
    for layout in layouts:
        seconds = np.array([launch.seconds for launch in measurement.of(layout)])
        if len(seconds):
            costs = np.log(seconds)
            value = float(np.exp(costs.mean()))
            cost_samples.append(CostSample(quantity=TIME, layout=layout, costs=costs, value=value))
    base = layouts[0]
    # The same ranks with other threads: no efficiency over the base.
    larger = [layout for layout in layouts[1:] if layout.ranks != base.ranks]
    for layout in larger:
        cost_samples += _efficiency(measurement, base, [layout], layout)
    if len(larger) > 1:  # the curve: the geometric mean of all
        cost_samples += _efficiency(measurement, base, larger, None)
    return tuple(cost_samples)


def _efficiency(
    measurement: Measurement, base: Layout, compared: Sequence[Layout], layout: Layout | None
) -> Iterator[CostSample]:
    """Yield the sample of the efficiency of the `compared` layouts over `base`, their geometric mean; none without one.

    `layout` is what it is told of, None for the curve.
    """
    slowdowns = []
    for base_launch, *launches in whole_repeats(measurement, (base, *compared)):
        slowdowns.append([slowdown_over(measurement, base_launch, launch) for launch in launches])
    if slowdowns:
        costs = np.log(np.array(slowdowns)).mean(axis=1)
        yield CostSample(
            quantity=CURVE if layout is None else EFFICIENCY,
            layout=layout,
            costs=costs,
            value=float(np.exp(-costs.mean())),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Session:
    """Launches of one session, the hosts that they were on, and their repeats."""

    launches: tuple[MeasuredLaunch, ...]
    hosts: frozenset[str]
    repeats: frozenset[int]

    def joined(self, peer: "_Session") -> "_Session":
        """Return the launches of both."""
        return _Session(
            launches=(*self.launches, *peer.launches),
            hosts=self.hosts | peer.hosts,
            repeats=self.repeats | peer.repeats,
        )


def session_numbers(measurement: Measurement) -> dict[MeasuredLaunch, int]:
    """Return the number of the session, from 0 in order of time, of every launch.

    A session is of one time (`sessions`) and one set of hosts: launches of one time are of one session if they share a
    host, by way of others too. Launches one after the other may be on hosts of their own, each in a job: there a repeat
    is of one session too. Where the hosts are not known, the time alone tells.
    """
    times = [(launch.started, launch.ended) for launch in measurement.launches]
    by_time: dict[int, list[_Session]] = {}
    for launch, number in zip(measurement.launches, sessions(times), strict=True):
        session = _Session(
            launches=(launch,),
            hosts=frozenset(host.name for host in launch.hosts),
            repeats=frozenset() if measurement.in_turns else frozenset([launch.repeat]),
        )
        others = []
        for peer in by_time.get(number, []):
            is_known = session.hosts and peer.hosts
            if not is_known or session.hosts & peer.hosts or session.repeats & peer.repeats:
                session = session.joined(peer)
            else:
                others.append(peer)
        by_time[number] = [*others, session]
    in_order = [session for same_time in by_time.values() for session in same_time]
    in_order.sort(key=lambda session: min(launch.started for launch in session.launches))
    return {launch: number for number, session in enumerate(in_order) for launch in session.launches}


def whole_repeats(measurement: Measurement, layouts: Sequence[Layout]) -> list[tuple[MeasuredLaunch, ...]]:
    """Return the launches of `layouts` repeat by repeat, in order of time: whole repeats of one session only."""
    session = session_numbers(measurement)
    by_place = {(launch.layout, launch.repeat): launch for launch in measurement.launches}
    whole = []
    for repeat in sorted({launch.repeat for launch in measurement.launches}):
        launches = tuple(by_place[layout, repeat] for layout in layouts if (layout, repeat) in by_place)
        if len(launches) == len(layouts) and len({session[launch] for launch in launches}) == 1:
            whole.append(launches)
    return sorted(whole, key=lambda launches: min(launch.started for launch in launches))


def slowdown_over(measurement: Measurement, base: MeasuredLaunch, launch: MeasuredLaunch) -> float:
    """Return the inverse of the efficiency of `launch` over `base`: 1 is ideal, 2 is half."""
    ideal = launch.layout.ranks / base.layout.ranks if measurement.scaling == "strong" else 1.0
    return launch.seconds * ideal / base.seconds
