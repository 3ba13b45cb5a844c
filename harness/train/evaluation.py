"""The scores of a network on all test rows, equal on every rank."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from harness.comm.world import World
from harness.train.batch_input import ImageFiles, image_dataset, prepare_input
from harness.train.shard_data import RankData
from harness.train.step import first_output, row_losses

_ROWS = 1000  # most rows evaluated at a time


_VALUES = 5_000_000  # most input values at a time: a network's maps take many times their memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Means over all test rows; `auc` only for two classes that both occur."""

    loss: float
    accuracy: float
    auc: float | None


def compile_evaluation(
    world: World, model: keras.Model, loss: str, data: RankData, threads: int = 1
) -> Callable[[], Scores]:
    """Return a function that evaluates `model` on all test rows and gives the same scores on every rank.

    `threads` decode images, where they are in files.
    """
    two_classes = data.record.classes == 2
    size = max(1, min(_ROWS, _VALUES // math.prod(data.record.features)))

    @tf.function(reduce_retracing=True, autograph=False)
    def chunk(rows: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        logits = first_output(model(prepare_input(rows, data.shift, data.factor), training=False))
        correct = tf.reduce_sum(tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) == labels, tf.int64))
        score = logits[:, 1] - logits[:, 0] if two_classes else tf.zeros([0])
        return tf.reduce_sum(row_losses(loss, labels, logits)), correct, score

    def evaluate() -> Scores:
        sums = np.zeros(2)
        scores = [np.zeros(0, np.float32)]
        for rows, labels in _chunks(data, size, threads):
            loss_sum, correct, score = chunk(rows, labels)
            sums += float(loss_sum), float(correct)
            scores.append(score.numpy())
        total = np.empty_like(sums)
        world.comm.Allreduce(sums, total)
        area = None
        if two_classes:
            gathered = world.comm.gather((np.concatenate(scores), data.test_y), root=0)
            area = world.comm.bcast(
                auc(*map(np.concatenate, zip(*gathered, strict=True))) if gathered else None, root=0
            )
        rows = data.record.test_rows
        return Scores(loss=float(total[0]) / rows, accuracy=float(total[1]) / rows, auc=area)

    return evaluate


def _chunks(data: RankData, size: int, threads: int) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """Yield the rank's test rows, `size` at a time, and their labels."""
    if data.files is not None:
        numbers = np.arange(len(data.test_y), dtype=np.int64)
        yield from image_dataset(
            ImageFiles(data.files),
            data.test_x,
            data.test_y,
            numbers,
            batch=size,
            size=data.record.features[0],
            threads=threads,
            salt=None,
        )
        return
    for start in range(0, len(data.test_y), size):
        part = slice(start, start + size)
        yield tf.constant(data.test_x[part]), tf.constant(data.test_y[part])


def auc(scores: np.ndarray, labels: np.ndarray) -> float | None:
    """Return the area under the ROC curve; None when a class is missing or a score is not finite.

    It is the chance that a row of class 1 scores higher than one of class 0, ties counting half (Hanley and McNeil
    1982), by the sum of its ranks. scikit-learn's takes two seconds to import.
    """
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    ones = int(labels.sum())
    pairs = ones * (len(labels) - ones)
    if not pairs or not np.isfinite(scores).all():
        return None
    return float((ranks[labels == 1].sum() - ones * (ones + 1) / 2) / pairs)
