"""Contender: Keras's own ``model.fit`` with its default settings, on one core."""

import time
from typing import Any

from harness.bench.bench_record import WARM_UP_EPOCHS
from harness.bench.contenders.script import begin, build_network, one_thread, own_rows, print_answer


def main() -> None:
    """Train as the command line asks; an epoch lasts from its begin to its end as Keras calls them back."""
    task, place = begin()
    one_thread()
    import keras

    class FitTimer(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.seconds: list[float] = []

        def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            self.begin = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            self.seconds.append(time.perf_counter() - self.begin)

    x, y = own_rows(task, place)
    model = build_network(task)
    model.compile(
        optimizer=keras.optimizers.SGD(task.learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    clock = FitTimer()
    # verbose=0 spares Keras the cost of its progress bar; everything else is as it comes.
    history = model.fit(
        x, y, batch_size=task.batch_per_rank, epochs=WARM_UP_EPOCHS + task.epochs, verbose=0, callbacks=[clock]
    )
    print_answer(seconds=clock.seconds, losses=list(map(float, history.history["loss"])), model=model)


if __name__ == "__main__":
    main()
