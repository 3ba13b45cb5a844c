"""Loss, accuracy and AUC on the test rows, each rank evaluating its own part."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from harness.train.load import RankData
from harness.train.loss import prepare_input, row_losses

if TYPE_CHECKING:
    from harness.comm.world import World

_ROWS = 1000  # rows evaluated at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Means over all test rows; `auc` only for two classes that both occur."""

    loss: float
    accuracy: float
    auc: float | None


def compile_evaluation(world: "World", model: keras.Model, loss: str, data: RankData) -> Callable[[], Scores]:
    """Return a function that evaluates `model` on all test rows and gives the same scores on every rank."""
    two_classes = data.record.classes == 2

    @tf.function(reduce_retracing=True)
    def chunk(rows: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        logits = model(prepare_input(rows, data.shift, data.factor), training=False)
        correct = tf.reduce_sum(tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) == labels, tf.int64))
        score = logits[:, 1] - logits[:, 0] if two_classes else tf.zeros([0])
        return tf.reduce_sum(row_losses(loss, labels, logits)), correct, score

    def evaluate() -> Scores:
        sums = np.zeros(2)
        scores = [np.zeros(0, np.float32)]
        for start in range(0, len(data.test_y), _ROWS):
            part = slice(start, start + _ROWS)
            loss_sum, correct, score = chunk(tf.constant(data.test_x[part]), tf.constant(data.test_y[part]))
            sums += float(loss_sum), float(correct)
            scores.append(score.numpy())
        total = np.empty_like(sums)
        world.comm.Allreduce(sums, total)
        auc = _auc(world, np.concatenate(scores), data.test_y) if two_classes else None
        rows = data.record.test_rows
        return Scores(loss=float(total[0]) / rows, accuracy=float(total[1]) / rows, auc=auc)

    return evaluate


def _auc(world: "World", scores: np.ndarray, labels: np.ndarray) -> float | None:
    """Return the area under the ROC curve over the rows of all ranks; None when a class is missing."""
    gathered = world.comm.gather((scores, labels), root=0)
    area = None
    if gathered is not None:
        from sklearn.metrics import roc_auc_score

        all_scores = np.concatenate([part[0] for part in gathered])
        all_labels = np.concatenate([part[1] for part in gathered])
        if np.unique(all_labels).size == 2 and np.isfinite(all_scores).all():
            area = float(roc_auc_score(all_labels, all_scores))
    return world.comm.bcast(area, root=0)  # type: ignore[no-any-return]
