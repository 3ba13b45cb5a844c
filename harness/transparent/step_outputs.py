"""What a compiled step lets out while it runs: what it prints, writes as a summary, or gives to Python."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from harness.transparent.patch import put, script_place, wrapped
from harness.transparent.probe import Trial


class StepOutputs:
    """Replaces `tf.print`, `tf.py_function`, `tf.numpy_function` and the writer of summaries.

    What a step lets out of a part of a batch is not what one process lets out. So a probe takes note of it, and the
    step gets whole batches. The probe itself lets nothing out.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def install(self) -> None:
        """Put the replacements in place."""
        put(tf, "print", wrapped(tf.print, self._print))
        for name in ("py_function", "numpy_function"):
            put(tf, name, wrapped(getattr(tf, name), self._call_python))
        put(tf.summary, "write", wrapped(tf.summary.write, self._write))

    def _is_kept(self) -> bool:
        """Tell whether a probe goes on, which takes note."""
        probe = self._trial.probe
        if probe is not None:
            probe.whole_for.append(f"the step prints, or calls Python, while it runs ({script_place()})")
        return probe is not None

    def _print(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._is_kept():
            return original(*args, **kwargs)
        return None if tf.executing_eagerly() else tf.no_op()

    def _call_python(
        self,
        original: Callable[..., Any],
        func: Any = None,
        inp: Any = None,
        Tout: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call a function of Python's; in a probe only if the step goes on with what it returns."""
        if self._is_kept() and isinstance(Tout, (list, tuple)) and not Tout:
            return []
        return original(func, inp, Tout, *args, **kwargs)

    def _write(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return tf.constant(False) if self._is_kept() else original(*args, **kwargs)
