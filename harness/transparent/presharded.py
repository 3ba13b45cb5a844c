"""Scripts that read with `DataSet`: every rank has rows of its own, and nothing is divided once more."""

from collections.abc import Callable
from typing import Any

from harness.base.errors import UserError
from harness.readers.script_data import DataSet
from harness.transparent.patch import replace
from harness.transparent.settings import RunSettings


class OwnRows:
    """Whether the script has made a `DataSet`: from then on, what it feeds is its rank's own."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self.present = False

    def install(self) -> None:
        """Be told of every `DataSet`."""
        replace(DataSet, "__init__", ("self", "data_name"), self._making)

    def _making(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(*args: Any, **kwargs: Any) -> None:
            if self._settings.batch == "global":
                raise UserError(
                    "DataSet gives every rank rows of its own, so batches are too: leave out --batch global"
                )
            self.present = True
            original(*args, **kwargs)

        return init


def offer_old_name() -> None:
    """Let scripts in the style of paper B write ``tf.DataSet``."""
    import tensorflow as tf

    tf.DataSet = DataSet
