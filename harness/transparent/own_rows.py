"""Scripts that read with `DataSet`: every rank has rows of its own, and nothing is divided once more."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.errors import UserError
from harness.readers.dataset import DataSet
from harness.transparent.patch import replace
from harness.transparent.settings import Settings

if TYPE_CHECKING:
    from harness.transparent.runtime import Runtime


class OwnRows:
    """Whether the script has made a `DataSet`: from then on, what it feeds is its rank's own."""

    def __init__(self, settings: Settings) -> None:
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


def own_adapter(adapter: Any, runtime: "Runtime", steps_per_epoch: int | None) -> Any:
    """Return an adapter of this rank's own batches, as many as the rank with the most has: the last are of no rows.

    Raises:
        UserError: their number is not known and the script does not give it.
    """
    import tensorflow as tf
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter
    from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

    from harness.transparent.keras_data import map_elements, untuned
    from harness.transparent.parts import Part, leading, length

    own = adapter.num_batches
    counts = runtime.collectives.gather(own, "comparison of steps")
    if None in counts and steps_per_epoch is None:
        raise UserError("the number of batches of every rank's own rows is not known: give fit steps_per_epoch")
    known = isinstance(adapter, (ArrayDataAdapter, TFDatasetAdapter)) and None not in counts
    most = max(counts) if known else own
    batches = adapter.get_tf_dataset()
    parts = map_elements(batches, lambda data: Part(data, tf.cast(length(leading(data)), tf.float32)))
    if known and most > own:
        spare = map_elements(batches.take(1), lambda data: Part(data, tf.constant(0.0)))
        parts = parts.concatenate(spare.repeat(most - own))

    class OwnAdapter(DataAdapter):
        """Hands out this rank's own batches."""

        num_batches = most
        batch_size = None
        has_partial_batch = None
        partial_batch_size = None

        def get_tf_dataset(self) -> tf.data.Dataset:
            return untuned(parts).prefetch(tf.data.AUTOTUNE)

        def on_epoch_begin(self) -> None:
            adapter.on_epoch_begin()

        def on_epoch_end(self) -> None:
            adapter.on_epoch_end()

    return OwnAdapter()
