"""Names of TensorFlow 1 that TensorFlow refuses beside Keras 3, answered by what it still ships of them.

``tf.compat.v1.layers`` and ``tf.compat.v1.nn.rnn_cell`` are routed to Keras 2, which is not there; yet TensorFlow has
the same layers and cells itself. Each name is told in a line the first time. Where Keras 2 is there and asked for
(TF_USE_LEGACY_KERAS), its names come first.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

_LAYERS = ("tensorflow.python.layers.layers", f"{__name__.rpartition('.')[0]}.tf1_batch_normalisation")
_CELLS = ("tensorflow.python.keras.layers.legacy_rnn.rnn_cell_impl",)
# What TensorFlow's loader asks Keras for: what scripts call it, and where its names are.
_MODULES = {
    "__internal__.legacy.layers": ("tf.layers", _LAYERS),
    "__internal__.legacy.rnn_cell": ("tf.nn.rnn_cell", _CELLS),
}


@functools.cache
def answer() -> None:
    """Put the answers in place, once; TensorFlow has been imported."""
    from tensorflow.python.util.lazy_loader import KerasLazyLoader

    KerasLazyLoader.__getattr__ = _answering(KerasLazyLoader.__getattr__)


def _answering(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the `original` way in which a loader finds its names, after that in `_MODULES`."""

    @functools.wraps(original)
    def find(loader: Any, name: str) -> Any:
        former = _MODULES.get(vars(loader).get("_tfll_submodule") or "")
        if former is None or name.startswith("_"):
            return original(loader, name)
        try:
            return original(loader, name)
        except (AttributeError, ImportError):
            title, sources = former
            value = _found(name, sources)
            if value is None:
                raise
            _tell(f"{title}.{name}")
            return value

    return find


def _found(name: str, sources: tuple[str, ...]) -> Any:
    """Return what the first of the modules `sources` that has it calls `name`, None where no one does."""
    for source in sources:
        value = getattr(importlib.import_module(source), name, None)
        if value is not None:
            return value
    return None


@functools.cache
def _tell(name: str) -> None:
    from harness.horovod.ranks import say_on_rank_0  # it imports TensorFlow, whose import has asked for us

    say_on_rank_0(f"the script's {name}, which TensorFlow refuses beside Keras 3, is answered by TensorFlow's own")
