"""Before the first step the ranks compare what they are about to train: a mismatch ends the run, not a hang."""

import hashlib
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from harness.base.errors import RunError, SharedError, UserError
from harness.transparent.runtime import Runtime

_WIDTH = 76  # characters of a fact
_COMPARED = 64  # rows of an array


def check_ranks(runtime: Runtime, script: Path) -> None:
    """Compare script, library versions, threads and visible GPUs.

    Raises:
        SharedError: a RunError on every rank that says what differs.
    """
    compare(
        runtime,
        {
            "script": hashlib.sha256(script.read_bytes()).hexdigest()[:12],
            "python": sys.version.split()[0],
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "numpy": np.__version__,
            "intra-op threads": str(tf.config.threading.get_intra_op_parallelism_threads()),
            "GPUs": str(len(tf.config.list_physical_devices("GPU"))),
            "arguments": " ".join(sys.argv[1:]),
        },
    )


def check_rows(runtime: Runtime, source: Any) -> None:
    """Compare the first rows of the arrays in `source`, a structure of them or a `tf.data.Dataset` made of some.

    Ranks that train on other rows than each other agree on a model all the same. Rounding may differ between hosts.

    Raises:
        UserError: a rank has other rows, on every rank.
    """
    arrays = _sources(source) if isinstance(source, tf.data.Dataset) else tree.flatten(source)
    known = [
        each
        for each in arrays
        if isinstance(each, np.ndarray) or (isinstance(each, tf.Tensor) and each.dtype != tf.variant)
    ]
    measures = [_measure(np.asarray(array[:_COMPARED])) for array in known if len(array.shape) > 0]
    for rank, other in enumerate(gathered := runtime.collectives.gather(measures, "comparison of rows")):
        if len(other) != len(gathered[0]) or not np.allclose(other, gathered[0], rtol=1e-4, atol=0):
            raise UserError(
                f"rank {rank} has other rows of data than rank 0: give whatever draws or orders them a seed, as in "
                "np.random.RandomState(0)"
            )


def _sources(dataset: Any) -> list[Any]:
    """Return the tensors that `dataset` is made of, as far as it is."""
    own = list(getattr(dataset, "_tensors", []))
    return own + [tensor for each in dataset._inputs() for tensor in _sources(each)]


def _measure(rows: "np.ndarray[Any, Any]") -> float:
    """Return a number that other rows, or another order of them, would hardly have too."""
    if rows.dtype.kind not in "biuf":
        return float(zlib.crc32(repr(rows.tolist()).encode()))
    values = np.nan_to_num(rows.astype(np.float64).ravel())
    return float(np.abs(values) @ (1.1 + np.sin(np.arange(len(values)))))


def model_facts(optimizer: Any, variables: Sequence[Any]) -> dict[str, str]:
    """Return class and settings of a Keras or TensorFlow-1 optimizer; name, shape and dtype of every variable."""
    facts = {"optimizer": type(optimizer).__name__}
    if hasattr(optimizer, "get_config"):
        with tf.init_scope():  # the learning rate is read from a variable
            config = optimizer.get_config()
        facts |= {f"optimizer {name}": str(value) for name, value in config.items() if name != "name"}
    facts["variables"] = str(len(variables))
    for number, variable in enumerate(variables):
        name, shape = getattr(variable, "path", variable.name), variable.shape
        dimensions = tuple(shape.as_list() if isinstance(shape, tf.TensorShape) else shape)
        facts[f"variable {number}"] = f"{name} {dimensions} {tf.as_dtype(variable.dtype).name}"
    return facts


def compare(runtime: Runtime, facts: Mapping[str, str]) -> None:
    """Gather every rank's `facts` and end the run where they differ.

    Raises:
        SharedError: a RunError on every rank, with the first fact that is not the same on all, and a rank that differs.
    """
    gathered = runtime.collectives.gather(facts, "comparison before the first step")
    for name in dict.fromkeys(name for each in gathered for name in each):
        values = [each.get(name, "none") for each in gathered]
        odd = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if odd is not None:
            raise SharedError(
                RunError(
                    f"the ranks are about to train different things: {name} is {values[0][:_WIDTH]} on rank 0 and "
                    f"{values[odd][:_WIDTH]} on rank {odd}"
                )
            )
