"""Trains in Horovod's and Keras 2's words on rows that the script divides: ROWS.npz, the optimizer's passes a step."""

import json
import sys

import horovod.tensorflow.keras as hvd
import keras
import numpy as np

hvd.init()
data, passes = np.load(sys.argv[1]), int(sys.argv[2])
x, y = data["x"][hvd.rank() :: hvd.size()], data["y"][hvd.rank() :: hvd.size()]
keras.utils.set_random_seed(1 + hvd.rank())
model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
model.build((None, 3))
if hvd.size() == 1 or hvd.rank() == 0:
    model.set_weights([data["w"], np.zeros(4), data["v"], np.zeros(1)])
start = [hvd.broadcast(weight, root_rank=0).numpy() for weight in model.get_weights()]
model.set_weights(start)
optimizer = hvd.DistributedOptimizer(
    keras.optimizers.SGD(lr=0.1, momentum=0.5), backward_passes_per_step=passes, average_aggregated_gradients=True
)
model.compile(optimizer=optimizer, loss="mse", experimental_run_tf_function=False)
warmup = hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1, warmup_epochs=1)
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
rows = len(data["x"]) // (2 * hvd.size() * passes)
history = model.fit(x, y, rows, 3, callbacks=callbacks + [warmup] * (passes > 1), shuffle=False, verbose=0)
keras.layers.BatchNormalization(axis=1), keras.layers.BatchNormalization(fused=True)
result = {"loss": history.history["loss"], "weights": [weight.tolist() for weight in model.get_weights()]}
result["variables"] = len(optimizer.variables())
if hvd.rank() == 0:
    model.save("model.keras")
    again = keras.models.load_model("model.keras")
    result["class"] = f"{type(again.optimizer).__module__}.{type(again.optimizer).__name__}"
    result["rate"] = float(again.optimizer.lr)
    result["again"] = type(hvd.load_model("model.keras").optimizer).__name__
    print("FOUND", json.dumps(result), flush=True)
