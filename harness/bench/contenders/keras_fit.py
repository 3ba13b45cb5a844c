"""Contender: Keras's own ``model.fit`` with its default settings, on one core; or under ``harness run``."""

from typing import Any

from harness.base import turns
from harness.base.first_epoch import note_first_epoch
from harness.bench.contenders.script import bench_network, one_thread, read_task, standardised


def main() -> None:
    """Train as the command line asks, until the block ends."""
    task = read_task()
    # Under `harness run` its optimizer's step passes the turns on.
    my_turns = turns.join_turns(0, 1) if turns.current_turns() is None else None
    one_thread()
    import keras

    class FirstLoss(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            if my_turns:
                my_turns.leave()
            if epoch == 0 and logs:
                note_first_epoch(float(logs["loss"]))

    x, y = standardised(task)
    model = bench_network(task)
    model.compile(
        optimizer=keras.optimizers.SGD(task.learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    if my_turns:
        model.make_train_function()
        step = model.train_function

        def in_turns(iterator: Any) -> Any:
            logs = step(iterator)
            my_turns.step()
            return logs

        model.train_function = in_turns
    # verbose=0 spares Keras the cost of its progress bar; everything else is as it comes.
    model.fit(x, y, batch_size=task.batch_per_rank, epochs=task.workload().epochs, verbose=0, callbacks=[FirstLoss()])


if __name__ == "__main__":
    main()
