"""Files of its own for each rank above 0 and for the witness, so that what they write meets nothing of rank 0's.

A rank enters its file tree while it has one thread, so nothing here may import what starts threads: no NumPy, no
TensorFlow, no MPI.
"""

from harness.transparent.private_files.file_mechanism import (
    PERMISSIONS,
    WITNESS,
    RankFiles,
    check_trees,
    enter,
    enter_as_witness,
    kept_sentence,
    leave,
    namespace_refusal,
    rank_by_environment,
    refused_write,
    shared_files_words,
)
from harness.transparent.private_files.script_imports import sees_ranks

__all__ = [
    "PERMISSIONS",
    "WITNESS",
    "RankFiles",
    "check_trees",
    "enter",
    "enter_as_witness",
    "kept_sentence",
    "leave",
    "namespace_refusal",
    "rank_by_environment",
    "refused_write",
    "sees_ranks",
    "shared_files_words",
]
