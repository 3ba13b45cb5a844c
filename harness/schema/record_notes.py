"""Notes in records: what a reader must know of a launch beside its numbers, as a code with values.

Code decides by the codes. The sentence is made where a note is shown, by `str(note)`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class NoteCode(StrEnum):
    """What a note is about."""

    BRIDGE = "bridge"
    NO_SHARED_MEMORY = "no-shared-memory"
    NOT_NODE_AWARE = "not-node-aware"
    ALGORITHM_TRIED = "algorithm-tried"
    OVERLAP_IGNORED = "overlap-ignored"
    SLOWER_UPDATES = "slower-updates"
    WIRE_ERROR = "wire-error"
    NOT_SYNCHRONISED = "not-synchronised"
    OTHER_WORK = "other-work"
    FILES_RECOGNISED = "files-recognised"  # in older records only
    FOLDER_SHOWS_CHANGES = "folder-shows-changes"
    FOLDER_READ_ONLY = "folder-read-only"
    FILES_SHARED = "files-shared"
    RESUMED = "resumed"
    OTHER_CODE = "other-code"
    OTHER_RANKS = "other-ranks"
    CHECKPOINT_NOT_READ = "checkpoint-not-read"
    CHECKPOINT_NOT_WRITTEN = "checkpoint-not-written"
    ATTEMPTS_NOT_WRITTEN = "attempts-not-written"
    OWN_LOOP = "own-loop"
    STAGED = "staged"
    SUMS_NOT_TIMED = "sums-not-timed"
    NCCL_IN_ONE_PIECE = "nccl-in-one-piece"
    NOT_COUNTED = "not-counted"
    NOT_IN_TURNS = "not-in-turns"
    LOOP_DIVIDED = "loop-divided"
    COMPUTED_WHOLE = "computed-whole"
    LOSS_OF_ALL_ROWS = "loss-of-all-rows"
    METRIC_OF_ALL_ROWS = "metric-of-all-rows"
    BATCHES_OF_UNKNOWN_SIZE = "batches-of-unknown-size"
    NOT_FUSED = "not-fused"
    NOT_COMPILED_BY_XLA = "not-compiled-by-xla"
    STRATEGY_LEFT_OUT = "strategy-left-out"
    REPLICAS_DIFFER = "replicas-differ"
    NO_WITNESS = "no-witness"
    WITNESS_AGREED = "witness-agreed"
    WITNESS_SAW_NOTHING = "witness-saw-nothing"
    WITNESS_MISSED = "witness-missed"
    ROUNDING_MAGNIFIED = "rounding-magnified"
    ROWS_OF_EACH_RANK = "rows-of-each-rank"
    NOT_DIVIDED_FROM = "not-divided-from"
    FLOPS_NOT_COUNTED = "flops-not-counted"


_SENTENCES = {
    NoteCode.BRIDGE: "the slower numpy_function bridge is in use: {reason}",
    NoteCode.NO_SHARED_MEMORY: "shared memory (/dev/shm) has no room for sums of {bytes:,} bytes: the slower "
    "MPI_Allreduce is in use; enlarge it, in a container with --shm-size",
    NoteCode.NOT_NODE_AWARE: "node-aware sums need several hosts with equally many ranks, at least two: MPI_Allreduce "
    "is in use",
    NoteCode.ALGORITHM_TRIED: "a sum of {tensors} tensors, {bytes:,} bytes, over these hosts takes messages "
    "{messages_ms:.3f} ms, node-aware {node_aware_ms:.3f} ms: {algorithm} is in use",
    NoteCode.OVERLAP_IGNORED: "HARNESS_OVERLAP=1 is ignored: a rank that fails between the pieces of a step would "
    "leave half of it",
    NoteCode.SLOWER_UPDATES: "weights are updated by TensorFlow's slower operations: {reason}",
    NoteCode.WIRE_ERROR: "{wire} on the wire: sums of gradients were at most {percent:.2g} % off float32's (batches "
    "compared: {batches})",
    NoteCode.NOT_SYNCHRONISED: "ranks were not synchronised: weights differ on purpose",
    NoteCode.RESUMED: "goes on from epoch {epoch}, {steps} steps into it, of a launch which {ended} {redone} steps "
    "later, at {when} UTC",
    NoteCode.OTHER_CODE: "the checkpoint is of a different code version: weights may differ in their last bits from "
    "those of a launch in one piece",
    NoteCode.OTHER_RANKS: "{ranks} ranks trained until then: their epochs are not in this record",
    NoteCode.CHECKPOINT_NOT_READ: "{reason}",
    NoteCode.CHECKPOINT_NOT_WRITTEN: "no checkpoint of epoch {epoch}, step {step}: {reason}",
    NoteCode.ATTEMPTS_NOT_WRITTEN: "{reason}",
    NoteCode.OWN_LOOP: "steps of the script's own loop are timed at the optimizer: their loss is not known",
    NoteCode.OTHER_WORK: "{reason}; rounds that this met are left out, but for times including interference",
    NoteCode.FILES_RECOGNISED: "ranks above 0 have no file tree of their own here ({reason}): what they write by "
    "other ways than Python's open, h5py, Keras and TensorFlow (SQLite, child processes) is written twice",
    NoteCode.FOLDER_SHOWS_CHANGES: "'{folder}' has too many entries to be copied for each rank: what rank 0 writes "
    "there while the script runs is seen by the others",
    NoteCode.FOLDER_READ_ONLY: "'{folder}' is read-only for ranks above 0: no overlay can lie on it",
    NoteCode.FILES_SHARED: "all ranks write the real files (--shared-files)",
    NoteCode.STAGED: "sums pass through the host's memory instead of NCCL: {reason}",
    NoteCode.SUMS_NOT_TIMED: "sums are made on the GPU's stream while the host goes on: their times are not known, and "
    "are not in the times of synchronisation",
    NoteCode.NCCL_IN_ONE_PIECE: "HARNESS_OVERLAP=1 is ignored: NCCL sums in one piece",
    NoteCode.NOT_IN_TURNS: "the GPUs' memory does not hold {launches} launches at once: they trained one after the "
    "other instead of interleaved",
    NoteCode.FLOPS_NOT_COUNTED: "the floating-point operations of a step are not known: those of TensorFlow's "
    "{operations} cannot be counted",
    NoteCode.NOT_COUNTED: "energy is not known in full: {reason}",
    NoteCode.LOOP_DIVIDED: "the loop's batches are divided: its losses, Keras's metrics and the single numbers that it "
    "takes out of TensorFlow are of the rows of all ranks, as means where its first steps have not shown a sum; "
    "whatever else it computes of a batch is of rank 0's",
    NoteCode.COMPUTED_WHOLE: "{reason}: every rank computes whole batches, which is right but no faster",
    NoteCode.LOSS_OF_ALL_ROWS: "loss '{name}' is computed from the rows of all ranks",
    NoteCode.METRIC_OF_ALL_ROWS: "metric '{name}' is computed from the rows of all ranks",
    NoteCode.BATCHES_OF_UNKNOWN_SIZE: "batches of unknown size are divided over the ranks as they are: the batch is "
    "global",
    NoteCode.NOT_FUSED: "the steps of fit are made one by one: {reason}",
    NoteCode.NOT_COMPILED_BY_XLA: "jit_compile is left out: XLA has no allreduce on CPUs",
    NoteCode.STRATEGY_LEFT_OUT: "a tf.distribute strategy of one replica is left out: the ranks take its place",
    NoteCode.REPLICAS_DIFFER: "replicas identical: no ({reason})",
    NoteCode.NO_WITNESS: "no witness has compared the training with that of one process (--unjudged): that it ended "
    "well does not say that it trained as alone",
    NoteCode.WITNESS_AGREED: "a witness, the script alone and undivided, had the same gradients and numbers in its "
    "first {steps} steps (trainings: {trainings}; apart by {gap:.1e} at most)",
    NoteCode.WITNESS_SAW_NOTHING: "no witness has judged the training: it has seen no gradients of the script",
    NoteCode.WITNESS_MISSED: "{reason}: what has been compared until then is equal",
    NoteCode.ROUNDING_MAGNIFIED: "the {kind} '{name}' is then {gap:.2g} of its size away from the witness's, as the "
    "script alone is ({rounding:.2g}) from itself with other kernels: what magnifies rounding so cannot be judged",
    NoteCode.ROWS_OF_EACH_RANK: "no witness has judged the training: every rank reads rows of its own",
    NoteCode.NOT_DIVIDED_FROM: "no witness judges what the script trains from {place} on, so its batches are not "
    "divided, which is right but no faster: --unjudged divides them all the same",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """One note: its `code`, and the `values` that its sentence has."""

    code: NoteCode
    values: Mapping[str, str | int | float] = field(default_factory=dict)

    def __str__(self) -> str:
        return _SENTENCES[self.code].format(**self.values)
