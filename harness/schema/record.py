"""RunRecord: what one launch was, where it ran, and what came out of it (``run.json``); records to JSON and back."""

import hashlib
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import TypeVar

import msgspec

from harness.base.errors import UserError
from harness.base.files import read_bytes
from harness.base.provenance import Machine
from harness.base.record_words import HOST, JOB, check_text
from harness.schema.data_record import DataRecord
from harness.schema.point import Point
from harness.schema.record_notes import Note, NoteCode
from harness.schema.sweep_folder import RUN_FILE, LaunchFolder, SweepFolder

# DeviceEnergy: what a GPU or a processor of a launch used.


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceEnergy:
    """One device of one host from before a launch's first epoch to after its last, evaluations included.

    Of a script it is from the first timed epoch on; of a launch in turns in its turns, `seconds` together; of one that
    was taken up again in its last attempt.

    `device` is a GPU's UUID, or a processor's name in RAPL such as package-0. `counter_j` is what the device's own
    counter of energy (NVML, RAPL) went up by, in joules, by `samples` readings; None where there is none. `missing`
    names what the device or its driver does not count.
    """

    host: str
    device: str
    seconds: float
    samples: int
    counter_j: float | None = None
    missing: tuple[str, ...] = ()

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, or a part of one."""
        return self.device.startswith(("GPU-", "MIG-"))

    @property
    def joules(self) -> float | None:
        """The energy by the device's own counter."""
        return self.counter_j

    @property
    def watts(self) -> float | None:
        """The mean power, None where nothing was counted."""
        return self.joules / self.seconds if self.joules is not None and self.seconds else None


# The table of a launch's steps as a file: whole, and the one that its record names.

STEP_COLUMNS = frozenset({"epoch", "step", "rank", "entry_s", "exit_s"})


def check_steps(path: Path, sha256: str) -> None:
    """Check that the table of steps at `path` is the one with the hash `sha256`; without a hash that it is whole.

    Raises:
        UserError: it is missing, damaged or another.
    """
    if not path.exists():
        raise UserError(f"'{path.parent}' has no {path.name}: delete the folder and run the point again")
    if not sha256:
        _check_columns(path)
    elif hashlib.sha256(read_bytes(path)).hexdigest() != sha256:
        raise UserError(
            f"'{path}' is not the table that its {RUN_FILE} names: delete the folder and run the point again"
        )


def _check_columns(path: Path) -> None:
    """Check that the table of steps at `path` can be read and has its columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        columns = set(pq.read_schema(path).names)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"'{path}' is cut or damaged: delete its folder and run the point again") from error
    if missing := STEP_COLUMNS - columns:
        raise UserError(f"'{path}' lacks the columns {', '.join(sorted(missing))}: run the point again")


# What jobs used, as their scheduler has measured it.


@dataclass(frozen=True, kw_only=True, slots=True)
class JobUsage:
    """What an ended job used, as measured by its scheduler; None is what that does not measure.

    `cpu_s` is processor time of all processes. `memory_bytes` is the most memory `memory_of` (Slurm: one process that
    it samples; PBS: the job) had. Of a requeued job it is what it used since its last start.
    """

    elapsed_s: float
    nodes: int
    cpu_s: float | None = None
    memory_bytes: int | None = None
    memory_of: str = ""
    energy_j: float | None = None

    @property
    def node_hours(self) -> float:
        """The node-hours that the job had."""
        return self.elapsed_s * self.nodes / 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """What is known of the `job` of a `launch` (its folder's name); jobs may be of several launches.

    `usage` is None while nothing is known, and for good where `missing` says why.
    """

    job: str
    scheduler: str
    launch: str
    usage: JobUsage | None = None
    missing: str = ""

    def __post_init__(self) -> None:
        check_text("job", self.job, JOB)
        check_text("launch", self.launch)


class LossReason(StrEnum):
    """How it was noticed that a rank is lost."""

    GONE = "gone"  # its process had ended
    LATE = "late"  # it lived and did not come
    GAVE_UP = "gave-up"  # another rank, which had noticed a loss, gave up a sum
    MPI = "mpi"  # the MPI library reported it


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedRank:
    """A rank that failed and that the launch outlived. `rank` is the number that it had then.

    It was `noticed` at this aware time, for this `reason`, after `step` steps of `epoch` (from 0); `redone` steps
    were repeated. `recovery_s` seconds later `ranks` ranks went on.
    """

    rank: int
    host: str
    pid: int
    noticed: datetime
    reason: LossReason | None
    epoch: int
    step: int
    redone: int
    recovery_s: float
    ranks: int

    def __str__(self) -> str:
        after = f"{self.step} steps of epoch {self.epoch + 1}" if self.step or not self.epoch else f"epoch {self.epoch}"
        return (
            f"rank {self.rank} failed after {after} (process {self.pid} on {self.host}): "
            f"{self.ranks} ranks went on after {self.recovery_s:.2f} s"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """What `ranks` ranks trained from one failure to the next: `steps` steps, after the `first` of the launch.

    `started` and `ended` are aware; the steps took `training_s` seconds of that, evaluation the most of the rest.
    """

    ranks: int
    first: int
    steps: int
    started: datetime
    ended: datetime
    training_s: float


SCHEMA = 1
_MOVED = 2.0  # on one machine 70 to 110 ns within two seconds, 351 to 441 five minutes later


@dataclass(frozen=True, kw_only=True, slots=True)
class Versions:
    """The harness's commit, empty outside a checkout, and the versions of all that a launch's speed depends on."""

    harness: str
    commit: str
    dirty: bool
    python: str
    tensorflow: str
    keras: str
    numpy: str
    mpi4py: str
    mpi_library: str

    def __post_init__(self) -> None:
        check_text("commit", self.commit, optional=True)  # git gets it


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance(Versions):
    """Versions, and all else that the run's speed and result depend on.

    `reduction` says in words how ranks sum, `algorithm` is the choice of HARNESS_REDUCTION that it is, empty for one
    rank, and `overlapped` says whether sums went on while later gradients were computed.
    `load_before` is the machine's load average at the start; `other_load` the cores that other processes
    kept busy during the timed epochs, on the host where that was most. `environment` has the variables that can change
    a run's speed, `system` the settings of rank 0's host that can (`harness.base.provenance`). `gpu_software` has the
    versions of a GPU's driver, CUDA, cuDNN and NCCL by name, none where ranks train on processors.
    """

    launcher: str
    reduction: str
    machine: Machine
    load_before: float
    other_load: float
    environment: dict[str, str]
    system: dict[str, str] = field(default_factory=dict)
    algorithm: str = ""
    overlapped: bool = False
    gpu_software: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRecord:
    """What one rank was given and observed. Times in seconds, memory in bytes, `cores` it may run on.

    `node` is the scheduler's name of the host; `core` the one it ran on when its place was taken down, before the timed
    epochs. `rows` is its share of the training rows; `batch` its rows of a full global batch. `import_s` from process
    start to TensorFlow imported; `load_s` reading its rows; `distribute_s` the scatter from rank 0 (0 when read in
    parallel); `compile_s` tracing, compilation and warm-up; `evaluate_s` all evaluations together. `clock_offset_s` is
    how far its host's clock was ahead of rank 0's when training began, `clock_drift` what it gained in a second, and
    `clock_error_s` the largest possible error of times on one clock. All are 0 on rank 0's host. `step_without_input_s`
    is a step that need not wait for images to be decoded, 0 where they are held in memory. `predicted_memory_bytes` is
    what the peak was expected to be: of the process, or on a GPU of the device, whose own peak is
    `peak_gpu_memory_bytes`. `gpu` describes that device and `device` is its UUID, both empty on a processor.
    `queued_share`, `stolen_share` and `preempted` are what others took from it over the timed epochs
    (`harness.base.cpu_contention.Delays`), `throttled_cpus` the CPUs that a quota held back from its cgroup meanwhile.
    `gpu_processes` computed on its device before or after the epochs, itself among them, and nothing else of its block.
    """

    rank: int
    host: str
    pid: int
    cores: tuple[int, ...]
    threads: int
    rows: int
    batch: int
    import_s: float
    load_s: float
    distribute_s: float
    compile_s: float
    evaluate_s: float
    peak_memory_bytes: int
    node: str = ""
    core: int = -1
    clock_offset_s: float = 0.0
    clock_drift: float = 0.0
    clock_error_s: float = 0.0
    step_without_input_s: float = 0.0
    predicted_memory_bytes: int = 0
    peak_gpu_memory_bytes: int = 0
    gpu: str = ""
    device: str = ""
    queued_share: float = 0.0
    stolen_share: float = 0.0
    preempted: int = 0
    throttled_cpus: float = 0.0
    gpu_processes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRecord:
    """One epoch. `seconds` and `sync_seconds` have one entry per rank: training time of the epoch without
    evaluation, and the part of it spent inside synchronisation calls (waiting included). The latter's parts are
    `skew_seconds`, waiting for the last rank to come, and `wire_seconds`, the sum itself; `input_seconds` is the
    part spent on getting rows: drawing their order, waiting for images to be decoded. All three are empty in records
    that lack them. `begin_s` is when rank 0 began the epoch, seconds since it began the first: of scripts, else None.

    `train_loss` is the mean over the rows as they were visited; the rest is measured after the epoch on
    the test rows, None where that epoch was not evaluated. `test_auc` only for two classes. Losses that are
    not finite are None.
    """

    epoch: int
    steps: int
    seconds: tuple[float, ...]
    sync_seconds: tuple[float, ...]
    train_loss: float | None
    test_loss: float | None = None
    test_accuracy: float | None = None
    test_auc: float | None = None
    input_seconds: tuple[float, ...] = field(default=())
    skew_seconds: tuple[float, ...] = field(default=())
    wire_seconds: tuple[float, ...] = field(default=())
    begin_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsRecord:
    """The trained weights. `sha256` is of all of them in order; `identical` over all ranks.

    `tensors` are the bytes of each and `shapes` their shapes, () of scripts. `length` is the
    Euclidean norm of all that a script has trained, None elsewhere.
    """

    parameters: int
    bytes: int
    sha256: str
    identical: bool
    tensors: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    length: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """One attempt of a launch that was ended and taken up again; the last one of a record came to the launch's end.

    `started` and `ended` are aware datetimes; an attempt that could not say so ended some time after `ended`. `stopped`
    is the signal it was asked to stop by, empty where it was killed, crashed, or came to the launch's end. It went from
    `begin` to `end`, each the number of epochs that were whole and of steps of the next. `redone` steps of the attempt
    before were made again in this one; where that could not say where it ended it is the least. `ranks` are its ranks.
    """

    started: datetime
    ended: datetime
    begin: tuple[int, int]
    end: tuple[int, int]
    ranks: int
    stopped: str = ""
    redone: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """One finished launch. A record is written only by a run that reached its end with all ranks.

    `invalid` lists why the times must not be used (too few cores, other load, ranks not where they should
    be); an empty tuple is a valid run. `notes` are what else to know of it: code decides by their codes; those that
    are texts are of earlier versions. `started` and `ended` are aware datetimes. `seed` is what the initial weights
    and the order of rows came from, None in a script's record. `segments` are the attempts of a
    launch that was taken up from a checkpoint, in their order; empty for one that ran in one piece. `losses` are the
    ranks that it outlived, `stretches` what was trained between: `ranks` and the times of epochs are of those that came
    to the end. `block` names the block in which it trained in turns with others, empty for one that ran alone.
    `core_ns` are the nanoseconds of a ping-pong between two ranks' cores before the epochs and after them, on the host
    where that took longest; 0 where it was not measured. `fused_steps` are those of a script's `fit` that were made in
    compiled loops of many, in all epochs together. `own_rate` is what a script has printed of its own speed, read by
    the workload's `own_rate`, None without one. `energy` is of its GPUs, and of its hosts' processors where that can be
    read. `flops_per_row` are the floating-point operations of a training step's matrix products and convolutions,
    forward and backward, over its rows; None of scripts, and where a note says what could not be counted.
    `forked` says whether its ranks were forked from a process that had TensorFlow imported.
    `steps_sha256` is the hash of the launch's table of steps, empty in records that lack it.
    """

    schema: int
    point: Point
    started: datetime
    ended: datetime
    global_batch: int
    steps_per_epoch: int
    data: DataRecord
    provenance: Provenance
    ranks: tuple[RankRecord, ...]
    epochs: tuple[EpochRecord, ...]
    weights: WeightsRecord
    invalid: tuple[str, ...] = field(default=())
    notes: tuple[Note | str, ...] = field(default=())
    seed: int | None = None
    segments: tuple[Segment, ...] = field(default=())
    losses: tuple[FailedRank, ...] = field(default=())
    stretches: tuple[Stretch, ...] = field(default=())
    block: str = ""
    core_ns: tuple[float, ...] = field(default=())
    fused_steps: int = 0
    own_rate: float | None = None
    energy: tuple[DeviceEnergy, ...] = field(default=())
    flops_per_row: float | None = None
    forked: bool = False
    steps_sha256: str = ""

    def __post_init__(self) -> None:
        check_text("block", self.block, optional=True)  # of its file's name
        hosts = [host for rank in self.ranks for host in (rank.host, rank.node)]
        for host in (*hosts, *(lost.host for lost in self.losses)):
            check_text("host", host, HOST, optional=True)

    @property
    def met(self) -> bool:
        """Whether other work was beside the launch, which trained in turns."""
        return self.note(NoteCode.OTHER_WORK) is not None

    @property
    def sums_timed(self) -> bool:
        """Whether the host knew when sums began and ended: else waiting and sums are in the time of computation."""
        return self.note(NoteCode.SUMS_NOT_TIMED) is None

    def note(self, code: NoteCode) -> Note | None:
        """Return the first note of that code, None without one."""
        return next((note for note in self.notes if isinstance(note, Note) and note.code == code), None)

    @property
    def timed_epochs(self) -> tuple[EpochRecord, ...]:
        """The epochs whose times count; see `timed_epochs`."""
        return timed_epochs(self.epochs, self.segments)

    def as_timed(self) -> "RunRecord":
        """Return the launch with the epochs alone whose times count; as it is where none do."""
        timed = self.timed_epochs
        return replace(self, epochs=timed) if self.segments and timed else self

    @property
    def moved(self) -> bool:
        """Whether the ranks' cores were nearer at one end than at the other: in a core, under a cache, or far apart."""
        return bool(self.core_ns) and max(self.core_ns) > _MOVED * min(self.core_ns) > 0

    @property
    def hosts(self) -> int:
        """On how many hosts its ranks were."""
        return len({rank.host for rank in self.ranks})

    @property
    def epoch_s(self) -> float:
        """The launch's time as reports have it: the median over its timed epochs of the slowest rank's seconds."""
        return median(max(epoch.seconds) for epoch in self.as_timed().epochs)

    @property
    def launched(self) -> datetime:
        """When the first of its processes started: `started` is after TensorFlow's import, but for a script's."""
        if self.point.workload.script:
            return self.started
        return self.started - timedelta(seconds=max(rank.import_s for rank in self.ranks))

    @property
    def wall_seconds(self) -> float:
        """The seconds that a user waits for such a launch, from the start of its processes to its record."""
        trained_s = sum(max(epoch.seconds) for epoch in self.epochs)
        seconds = max((self.ended - self.started).total_seconds(), trained_s)  # less where the clock was set back
        return seconds + (self.started - self.launched).total_seconds()


def timed_epochs(epochs: tuple[EpochRecord, ...], segments: tuple[Segment, ...]) -> tuple[EpochRecord, ...]:
    """Return those of a launch's `epochs` whose times count: all after the one in which its last attempt took it up."""
    first = segments[-1].begin[0] + 1 if segments else 0
    return tuple(epoch for epoch in epochs if epoch.epoch >= first)


T = TypeVar("T")


def encode(value: object) -> bytes:
    """Return `value` (any of the spec's dataclasses) as indented UTF-8 JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def decode(content: bytes, kind: type[T], source: Path) -> T:
    """Return the `kind` that `content` holds; `source` is named when it does not.

    Raises:
        UserError: the content is not JSON of that kind (cut in half, a field missing or of another type).
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise UserError(f"'{source}' is not a valid {kind.__name__}: {error}; delete it and run again") from error
    except msgspec.DecodeError as error:
        raise UserError(f"'{source}' is cut or damaged ({error}): delete it and run again") from error
    except UserError as error:
        raise UserError(f"'{source}' is not a valid {kind.__name__}: {error}") from error


def decode_file(path: Path, kind: type[T]) -> T | None:
    """Return the `kind` in the file at `path`, None where there is no file; raise a UserError if it is damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return decode(content, kind, path)


def read_point(path: Path) -> Point:
    """Read a point file; raise a UserError if the file is missing or damaged."""
    return decode(read_bytes(path), Point, path)


def read_accounts(files: SweepFolder) -> tuple[Account, ...]:
    """Return what is known of the jobs of the sweep of `files`; raise a UserError if the file is damaged."""
    return decode_file(files.accounts, tuple[Account, ...]) or ()


def read_run(folder: Path) -> RunRecord:
    """Read the record of the launch in `folder`, if it is whole: this is what "done" means, everywhere.

    A whole record has times of every rank in every epoch, and beside it the table of steps that it was written with.

    Raises:
        UserError: the record or its table is missing, damaged or of another schema version.
    """
    path = LaunchFolder(folder).record
    record = decode(read_bytes(path), RunRecord, path)
    if record.schema != SCHEMA:
        raise UserError(f"'{path}' has schema {record.schema}, this harness reads {SCHEMA}: run the point again")
    check_steps(LaunchFolder(folder).steps, record.steps_sha256)
    ranks = record.losses[-1].ranks if record.losses else record.point.layout.ranks
    if not record.epochs or len(record.ranks) != ranks:
        raise UserError(
            f"'{folder}' has {len(record.epochs)} epochs and {len(record.ranks)} of {ranks} ranks: "
            "delete the folder and run the point again"
        )
    for epoch in record.epochs:
        if not len(epoch.seconds) == len(epoch.sync_seconds) == ranks or not max(epoch.seconds) > 0:
            raise UserError(
                f"'{folder}' has no times of every rank in epoch {epoch.epoch}: "
                "delete the folder and run the point again"
            )
    return record


# What became of a launch that did not reach its end.


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A launch that did not reach its end. `reason` is its first error line, `tail` its last output lines.

    `seconds` is how long it had this machine's cores, a block's shared out to its launches; 0 of a batch system's job,
    which accounting knows.
    """

    point: Point
    ended: datetime
    exit_code: int
    reason: str
    tail: str
    seconds: float = 0.0
