"""Mixed precision with loss scaling and gradient accumulation."""

import json

import keras
import numpy as np

keras.utils.set_random_seed(41)
keras.mixed_precision.set_global_policy("mixed_float16")
rows = np.random.default_rng(19)
x = rows.normal(size=(512, 16)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("float32")

model = keras.Sequential(
    [keras.Input((16,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1, dtype="float32")]
)
model.compile(
    optimizer=keras.optimizers.SGD(0.05, gradient_accumulation_steps=2),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.AUC(from_logits=True)],
)
assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
losses = []
record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(float(logs["loss"])))
history = model.fit(x, y, batch_size=32, epochs=4, verbose=0, callbacks=[record])
print("LOSSES", json.dumps(losses))
print("HISTORY", json.dumps({key: [float(v) for v in values] for key, values in history.history.items()}))
print("SCALE", float(model.optimizer.dynamic_scale.numpy()))
