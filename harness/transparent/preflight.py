"""Before the first step the ranks compare what they are about to train: a mismatch ends the run at once."""

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
    """Compare the first rows of the arrays in `source`, a structure of arrays or a `tf.data.Dataset` made of some.

    Ranks that train on different data would agree on a model all the same. Rounding may differ between hosts.

    Raises:
        UserError: a rank has other rows, on every rank.
    """
    arrays = _sources(source) if isinstance(source, tf.data.Dataset) else tree.flatten(source)
    measures = [_measure(np.asarray(array[:_COMPARED])) for array in arrays if _is_array(array)]
    gathered = runtime.collectives.gather(measures, "comparison of rows")
    for rank, rank_measures in enumerate(gathered):
        same_count = len(rank_measures) == len(gathered[0])
        if not same_count or not np.allclose(rank_measures, gathered[0], rtol=1e-4, atol=0):
            raise UserError(
                f"rank {rank} has other rows of data than rank 0: give whatever draws or orders them a seed, as in "
                "np.random.RandomState(0)"
            )


def _is_array(value: Any) -> bool:
    """Tell whether `value` is an array or a tensor with rows."""
    is_tensor = isinstance(value, tf.Tensor) and value.dtype != tf.variant
    return (isinstance(value, np.ndarray) or is_tensor) and len(value.shape) > 0


def _sources(dataset: Any) -> list[Any]:
    """Return the tensors that `dataset` is made of, as far as it is made of tensors."""
    tensors = list(getattr(dataset, "_tensors", []))
    for source in dataset._inputs():
        tensors += _sources(source)
    return tensors


@np.errstate(all="ignore")  # the script may have asked NumPy to raise
def _measure(rows: "np.ndarray[Any, Any]") -> float:
    """Return a number that almost certainly differs for other rows, or for another order of them."""
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
        name = getattr(variable, "path", variable.name)
        shape = variable.shape
        dimensions = tuple(shape.as_list() if isinstance(shape, tf.TensorShape) else shape)
        facts[f"variable {number}"] = f"{name} {dimensions} {tf.as_dtype(variable.dtype).name}"
    return facts


def compare(runtime: Runtime, facts: Mapping[str, str]) -> None:
    """Gather every rank's `facts` and end the run where they differ.

    Raises:
        SharedError: a RunError on every rank, with the first fact that differs and a rank where it does.
    """
    gathered = runtime.collectives.gather(facts, "comparison before the first step")
    for name in dict.fromkeys(name for rank_facts in gathered for name in rank_facts):
        values = [rank_facts.get(name, "none") for rank_facts in gathered]
        rank = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if rank is not None:
            raise SharedError(
                RunError(
                    f"the ranks are about to train different things: {name} is {values[0][:_WIDTH]} on rank 0 and "
                    f"{values[rank][:_WIDTH]} on rank {rank}"
                )
            )
