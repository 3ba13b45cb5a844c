"""Keras's `fit`: data of all kinds, losses, optimizers, metrics, callbacks, layers, models and options."""

from tests.scripts.corpus import HEAD, Script, fill

_FIT = (
    HEAD
    + """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(16, activation='tanh'), keras.layers.Dense($units, activation='$last')])
$before
model.compile(optimizer=$optimizer, loss=$loss, metrics=$metrics, $compile)
history = model.fit($data, epochs=3, verbose=0, $fit)
report(history=[v for k in sorted(history.history) for v in history.history[k]], evaluate=np.atleast_1d(model.evaluate(x, $y, verbose=0)),
       weights=[float(np.abs(v).sum()) for v in model.get_weights()])
"""
)
_KINDS = {
    "c": ("3", "softmax", "'sparse_categorical_crossentropy'"),
    "b": ("1", "sigmoid", "'binary_crossentropy'"),
    "r": ("1", "linear", "'mse'"),
    "o": ("3", "softmax", "'categorical_crossentropy'"),
}


def _fit(name: str, y: str = "c", *, rtol: float = 2e-3, refused: str = "", **parts: str) -> Script:
    units, last, loss = _KINDS[y]
    target = "np.eye(3, dtype='float32')[c]" if y == "o" else y
    filled = {
        "units": units,
        "last": last,
        "loss": loss,
        "optimizer": "keras.optimizers.SGD(0.05)",
        "metrics": "[]",
        "compile": "",
        "fit": "",
        "before": "",
        "data": "x, Y, batch_size=32, shuffle=False",
    } | parts
    filled["data"] = filled["data"].replace("Y", target)
    return Script(name=f"fit-{name}", source=fill(_FIT, y=target, **filled), rtol=rtol, refused=refused)


_GENERATOR = """
def batches():
    while True:
        for i in range(0, 300, 50):
            yield x[i:i + 50], c[i:i + 50]
"""
_SEQUENCE = """
class Rows(keras.utils.PyDataset):
    def __len__(self): return 10
    def __getitem__(self, i): return x[30 * i:30 * i + 30], c[30 * i:30 * i + 30]
"""
_CUSTOM = {
    "mean": "def own(t, p): return tf.reduce_mean(tf.square(p - t))",
    "sum": "def own(t, p): return 0.05 * tf.reduce_sum(tf.square(p - t))",
    "rows": "def own(t, p): return tf.reduce_sum(tf.abs(p - t), axis=-1)",
    "dice": "def own(t, p): return 1 - (2 * tf.reduce_sum(t * p) + 1) / (tf.reduce_sum(t) + tf.reduce_sum(p) + 1)",
    "rmse": "def own(t, p): return tf.sqrt(tf.reduce_mean(tf.square(p - t)) + 1e-6)",
    "contrast": "def own(t, p): return tf.reduce_mean(tf.square((t - tf.transpose(t)) - (p - tf.transpose(p))))",
    "class": "class Own(keras.losses.Loss):\n    def call(self, t, p): return tf.square(p - t)[:, 0]\nown = Own()",
    "classsum": "class Own(keras.losses.Loss):\n    def call(self, t, p): return 0.02 * tf.square(p - t)[:, 0]\nown = Own(reduction='sum')",
    "called": "class Own(keras.losses.Loss):\n    def __call__(self, known, found, sample_weight=None): return tf.reduce_mean(tf.square((known - tf.transpose(known)) - (found - tf.transpose(found))))\nown = Own()",
    "batchvariance": "def own(t, p): return tf.reduce_mean(tf.square(p - t)) + 0.1 * tf.math.reduce_variance(p)",
}
_METRIC = {
    "f1": "def m(t, p):\n    h = tf.round(p)\n    return 2 * tf.reduce_sum(t * h) / (tf.reduce_sum(t) + tf.reduce_sum(h) + 1e-6)",
    "r2": "def m(t, p): return 1 - tf.reduce_sum(tf.square(t - p)) / (tf.reduce_sum(tf.square(t - tf.reduce_mean(t))) + 1e-6)",
    "rowwise": "def m(t, p): return tf.abs(t - p)",
    "max": "def m(t, p): return tf.reduce_max(p)",
    "class": """
class M(keras.metrics.Metric):
    def __init__(self, name='m', **k):
        super().__init__(name=name, **k)
        self.top = self.add_weight(name='top', initializer='zeros')
    def update_state(self, t, p, sample_weight=None): self.top.assign(tf.maximum(self.top, tf.reduce_max(p)))
    def result(self): return self.top
m = M()""",
    "inner": """
class M(keras.metrics.Metric):
    def __init__(self, name='m', **k):
        super().__init__(name=name, **k)
        self.precision, self.recall = keras.metrics.Precision(), keras.metrics.Recall()
    def update_state(self, t, p, sample_weight=None):
        self.precision.update_state(t, p); self.recall.update_state(t, p)
    def result(self):
        a, c = self.precision.result(), self.recall.result()
        return 2 * a * c / (a + c + 1e-6)
    def reset_state(self):
        self.precision.reset_state(); self.recall.reset_state()
m = M()""",
}
_OPTIMIZERS = (
    "SGD(0.05, momentum=0.9)",
    "SGD(0.05, momentum=0.9, nesterov=True)",
    "Adam(0.01)",
    "Adam(0.01, amsgrad=True)",
    "RMSprop(0.01)",
    "RMSprop(0.01, centered=True)",
    "Adagrad(0.05)",
    "Adadelta(1.0)",
    "Adamax(0.01)",
    "Nadam(0.01)",
    "Ftrl(0.1)",
    "AdamW(0.01, weight_decay=0.01)",
    "Lion(0.002)",
    "Adafactor(0.01)",
    "Lamb(0.01)",
    "SGD(0.05, clipnorm=0.1)",
    "SGD(0.05, clipvalue=0.02)",
    "SGD(0.05, global_clipnorm=0.2)",
    "SGD(0.05, use_ema=True)",
    "SGD(0.05, gradient_accumulation_steps=2)",
    "SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9))",
    "SGD(keras.optimizers.schedules.CosineDecay(0.1, 30))",
    "SGD(0.05, weight_decay=0.01)",
    "LossScaleOptimizer(keras.optimizers.SGD(0.05))",
)
_CALLBACKS = {
    "stop": "keras.callbacks.EarlyStopping(monitor='loss', patience=1)",
    "plateau": "keras.callbacks.ReduceLROnPlateau(monitor='loss', patience=1, factor=0.5, min_delta=1)",
    "schedule": "keras.callbacks.LearningRateScheduler(lambda e, lr: lr * 0.5)",
    "checkpoint": "keras.callbacks.ModelCheckpoint('best.weights.h5', save_weights_only=True, save_best_only=True, monitor='loss')",
    "csv": "keras.callbacks.CSVLogger('log.csv')",
    "nan": "keras.callbacks.TerminateOnNaN()",
    "lambda": "keras.callbacks.LambdaCallback(on_epoch_end=lambda e, logs: None)",
    "backup": "keras.callbacks.BackupAndRestore('backup')",
    "swap": "keras.callbacks.SwapEMAWeights(swap_on_epoch=True)",
}
_LOSSES = {
    "r": ("mae", "huber", "log_cosh", "msle", "cosine_similarity"),
    "b": ("hinge", "squared_hinge", "binary_focal_crossentropy"),
    "o": ("categorical_hinge", "kl_divergence", "categorical_focal_crossentropy"),
}
_MEASURES = {
    "b": (
        "AUC()",
        "Precision()",
        "Recall()",
        "TruePositives()",
        "BinaryAccuracy()",
        "BinaryIoU()",
        "PrecisionAtRecall(0.5)",
        "FalseNegatives()",
    ),
    "c": ("SparseCategoricalAccuracy()", "SparseTopKCategoricalAccuracy(2)", "SparseCategoricalCrossentropy()"),
    "o": ("CategoricalAccuracy()", "F1Score('macro')", "TopKCategoricalAccuracy(2)", "OneHotMeanIoU(3)"),
    "r": ("RootMeanSquaredError()", "R2Score()", "LogCoshError()", "CosineSimilarity()"),
}

SCRIPTS = [
    _fit("arrays", fit="validation_split=0.2"),
    _fit("arrays-even", data="x[:288], c[:288], batch_size=32, shuffle=False"),
    _fit("tensors", data="tf.constant(x), tf.constant(c), batch_size=50, shuffle=False"),
    _fit("validation", fit="validation_data=(x[:77], c[:77])"),
    _fit("dataset", data="tf.data.Dataset.from_tensor_slices((x, c)).batch(32)"),
    _fit("dataset-drop", data="tf.data.Dataset.from_tensor_slices((x, c)).batch(32, drop_remainder=True)"),
    _fit(
        "dataset-repeat", data="tf.data.Dataset.from_tensor_slices((x, c)).batch(32).repeat()", fit="steps_per_epoch=8"
    ),
    _fit(
        "dataset-parallel",
        data="tf.data.Dataset.from_tensor_slices((x, c)).map(lambda a, t: (a * 2, t), num_parallel_calls=2, deterministic=False).batch(32).prefetch(2)",
    ),
    _fit(
        "dataset-cache", data="tf.data.Dataset.from_tensor_slices((x, c)).cache().batch(32).prefetch(tf.data.AUTOTUNE)"
    ),
    _fit("dataset-shuffled", data="tf.data.Dataset.from_tensor_slices((x, c)).shuffle(300, seed=3).batch(32)"),
    _fit("generator", before=_GENERATOR, data="batches()", fit="steps_per_epoch=6"),
    _fit(
        "generator-dataset",
        before=_GENERATOR,
        data="tf.data.Dataset.from_generator(batches, output_signature=(tf.TensorSpec((None, 12)), tf.TensorSpec((None,), tf.int32)))",
        fit="steps_per_epoch=6",
    ),
    _fit("pydataset", before=_SEQUENCE, data="Rows()"),
    _fit("weights", fit="sample_weight=np.linspace(0.5, 1.5, 300)"),
    _fit("classes", fit="class_weight={0: 1.0, 1: 2.0, 2: 0.5}"),
    _fit(
        "weighted-metric", "b", compile="weighted_metrics=['accuracy']", fit="sample_weight=np.linspace(0.5, 1.5, 300)"
    ),
    _fit("eagerly", compile="run_eagerly=True"),
    _fit("bundled", compile="steps_per_execution=4"),
    _fit("bundled-even", data="x[:288], c[:288], batch_size=32, shuffle=False", compile="steps_per_execution=4"),
    _fit("late", fit="initial_epoch=1"),
    _fit("jit", compile="jit_compile=True"),
    _fit("scaled", compile="auto_scale_loss=False"),
    *(
        _fit(
            f"optimizer-{i}",
            optimizer=f"keras.optimizers.{text}" if not text.startswith("Loss") else f"keras.mixed_precision.{text}",
        )
        for i, text in enumerate(_OPTIMIZERS)
    ),
    *(_fit(f"loss-{loss}", kind, loss=f"'{loss}'") for kind, names in _LOSSES.items() for loss in names),
    *(  # of numbers above 0: divided by one near 0, or its logarithm, rounding is all that there is
        _fit(f"loss-{loss}", "r", loss=f"'{loss}'", before="r = np.abs(r) + 1", last="softplus")
        for loss in ("mape", "poisson")
    ),
    *(
        _fit(f"metric-{text.split('(')[0]}", kind, metrics=f"[keras.metrics.{text}]")
        for kind, names in _MEASURES.items()
        for text in names
    ),
    *(
        _fit(
            f"callback-{name}",
            fit=f"callbacks=[{text}]",
            optimizer="keras.optimizers.SGD(0.05, use_ema=True)" if name == "swap" else "keras.optimizers.SGD(0.05)",
        )
        for name, text in _CALLBACKS.items()
    ),
    *(
        _fit(f"own-loss-{name}", "b" if name == "dice" else "r", before=text, loss="own")
        for name, text in _CUSTOM.items()
    ),
    *(
        _fit(f"own-metric-{name}", "r" if name == "r2" else "b", before=text, metrics="[m]")
        for name, text in _METRIC.items()
    ),
    _fit(
        "sum-mse", "r", loss="keras.losses.MeanSquaredError(reduction='sum')", optimizer="keras.optimizers.SGD(0.001)"
    ),
    _fit(
        "sum-bce", "b", loss="keras.losses.BinaryCrossentropy(reduction='sum')", optimizer="keras.optimizers.SGD(0.001)"
    ),
    _fit("smooth", "o", loss="keras.losses.CategoricalCrossentropy(label_smoothing=0.1)"),
    _fit("dice", "b", loss="keras.losses.Dice()"),
    _fit("tversky", "b", loss="keras.losses.Tversky()"),
]

_MODEL = (
    HEAD
    + """
$setup
model.compile(optimizer=keras.optimizers.$optimizer, loss=$loss, $compile)
history = model.fit($data, epochs=2, batch_size=$batch, shuffle=False, verbose=0)
report(history=[v for k in sorted(history.history) for v in history.history[k]], weights=[float(np.abs(v).sum()) for v in model.get_weights()])
"""
)
_IMAGES = "i = rng.rand(96, 8, 8, 1).astype('float32'); t = (i[:, :4].sum((1, 2, 3)) > i[:, 4:].sum((1, 2, 3))).astype('int32')\n"
_WORDS = "s = rng.randint(1, 30, (128, 7)); s[:, 5:] = 0; t = (s[:, 0] > 15).astype('float32')\n"
_SERIES = "s = rng.randn(128, 6, 3).astype('float32'); t = s[:, -1, :1]\n"
_END = "keras.layers.Dense(2, activation='softmax')"


def _model(
    name: str,
    setup: str,
    data: str,
    loss: str = "'sparse_categorical_crossentropy'",
    *,
    rtol: float = 2e-3,
    refused: str = "",
    optimizer: str = "SGD(0.05)",
    compile: str = "",
    batch: str = "32",
) -> Script:
    source = fill(_MODEL, setup=setup, data=data, loss=loss, compile=compile, optimizer=optimizer, batch=batch)
    return Script(name=f"model-{name}", source=source, rtol=float(rtol), refused=refused)


def _sequential(name: str, data: str, layers: str, inputs: str, loss: str, **more: str) -> Script:
    return _model(name, data + f"model = keras.Sequential([{layers}])", inputs, loss, **more)  # type: ignore[arg-type]


def _cnn(name: str, layers: str, **more: str) -> Script:
    return _sequential(
        f"cnn-{name}",
        _IMAGES,
        layers + ", keras.layers.Flatten(), " + _END,
        "i, t",
        "'sparse_categorical_crossentropy'",
        **more,
    )


def _text(name: str, layers: str, **more: str) -> Script:
    return _sequential(
        f"text-{name}",
        _WORDS,
        layers + ", keras.layers.Dense(1, activation='sigmoid')",
        "s, t",
        "'binary_crossentropy'",
        **more,
    )


def _series(name: str, layers: str, **more: str) -> Script:
    return _sequential(f"series-{name}", _SERIES, layers + ", keras.layers.Dense(1)", "s, t", "'mse'", **more)


_CNN = "keras.layers.Conv2D(4, 3)"
SCRIPTS += [
    _cnn("plain", f"{_CNN}, keras.layers.ReLU()"),
    _cnn("pool", f"{_CNN}, keras.layers.AveragePooling2D(2)"),
    _cnn("norm", f"{_CNN}, keras.layers.BatchNormalization(), keras.layers.ReLU()", rtol="0.01"),
    _cnn("renorm", "keras.layers.BatchNormalization(momentum=0.5, scale=False), " + _CNN),
    _cnn("layernorm", f"{_CNN}, keras.layers.LayerNormalization()"),
    _cnn("groupnorm", f"{_CNN}, keras.layers.GroupNormalization(2)"),
    _cnn("separable", "keras.layers.SeparableConv2D(4, 3)"),
    _cnn("depthwise", "keras.layers.DepthwiseConv2D(3)"),
    _cnn("transpose", "keras.layers.Conv2DTranspose(4, 3, strides=2)"),
    _cnn("rescale", f"keras.layers.Rescaling(2.0), {_CNN}, keras.layers.GlobalMaxPooling2D()"),
    _cnn("spectral", "keras.layers.SpectralNormalization(keras.layers.Conv2D(4, 3))"),
    _text("mean", "keras.layers.Embedding(30, 8), keras.layers.GlobalAveragePooling1D()"),
    _text("masked", "keras.layers.Embedding(30, 8, mask_zero=True), keras.layers.LSTM(6)"),
    _text("gru", "keras.layers.Embedding(30, 8), keras.layers.GRU(6)"),
    _text("both", "keras.layers.Embedding(30, 8), keras.layers.Bidirectional(keras.layers.LSTM(4))"),
    _text("conv", "keras.layers.Embedding(30, 8), keras.layers.Conv1D(6, 3), keras.layers.GlobalMaxPooling1D()"),
    *(
        _text(f"sparse-{o.split('(')[0]}", "keras.layers.Embedding(30, 8), keras.layers.Flatten()", optimizer=o)
        for o in ("RMSprop(0.01)", "Adam(0.01)", "Adagrad(0.1)", "SGD(0.1, momentum=0.9)", "Ftrl(0.1)", "Nadam(0.01)")
    ),
    _series("lstm", "keras.layers.LSTM(5)"),
    _series("stacked", "keras.layers.LSTM(5, return_sequences=True), keras.layers.SimpleRNN(4)"),
    _series("conv", "keras.layers.Conv1D(5, 3, padding='causal'), keras.layers.Flatten()"),
    _series("distributed", "keras.layers.TimeDistributed(keras.layers.Dense(4)), keras.layers.Flatten()"),
    _series("stateful", "keras.Input(batch_shape=(32, 6, 3)), keras.layers.LSTM(5, stateful=True)"),
    _series("fixed", "keras.Input(batch_shape=(32, 6, 3)), keras.layers.LSTM(5)"),
    _model(
        "functional",
        "a = keras.Input((12,)); h = keras.layers.Dense(8, activation='relu')(a); g = keras.layers.Add()([h, keras.layers.Dense(8)(a)])\nmodel = keras.Model(a, keras.layers.Dense(3, activation='softmax')(g))",
        "x, c",
    ),
    _model(
        "two-inputs",
        "a, d = keras.Input((6,), name='a'), keras.Input((6,), name='d')\nmodel = keras.Model([a, d], keras.layers.Dense(3, activation='softmax')(keras.layers.Concatenate()([a, keras.layers.Dense(4)(d)])))",
        "[x[:, :6], x[:, 6:]], c",
    ),
    _model(
        "dict-inputs",
        "a, d = keras.Input((6,), name='a'), keras.Input((6,), name='d')\nmodel = keras.Model({'a': a, 'd': d}, keras.layers.Dense(3, activation='softmax')(keras.layers.Concatenate()([a, keras.layers.Dense(4)(d)])))",
        "{'a': x[:, :6], 'd': x[:, 6:]}, c",
    ),
    _model(
        "two-outputs",
        "a = keras.Input((12,)); h = keras.layers.Dense(8, activation='relu')(a)\nmodel = keras.Model(a, [keras.layers.Dense(3, activation='softmax', name='u')(h), keras.layers.Dense(1, name='v')(h)])",
        "x, [c, r]",
        "['sparse_categorical_crossentropy', 'mse']",
    ),
    _model(
        "named-outputs",
        "a = keras.Input((12,)); h = keras.layers.Dense(8, activation='relu')(a)\nmodel = keras.Model(a, {'u': keras.layers.Dense(3, activation='softmax', name='u')(h), 'v': keras.layers.Dense(1, name='v')(h)})",
        "x, {'u': c, 'v': r}",
        "{'u': 'sparse_categorical_crossentropy', 'v': 'mse'}",
        compile="loss_weights={'u': 1.0, 'v': 0.5}, metrics={'u': 'accuracy'}",
    ),
    _model(
        "named-sums",
        "a = keras.Input((12,)); h = keras.layers.Dense(8, activation='relu')(a)\ndef total(t, p): return 0.05 * tf.reduce_sum(tf.square(t - p))\nmodel = keras.Model(a, {'u': keras.layers.Dense(1, name='u')(h), 'v': keras.layers.Dense(1, name='v')(h)})",
        "x, {'u': r, 'v': b}",
        "{'u': total, 'v': 'mse'}",
    ),
    _model(
        "subclass",
        "class Net(keras.Model):\n    def __init__(self):\n        super().__init__()\n        self.a, self.z = keras.layers.Dense(8, activation='relu'), keras.layers.Dense(3, activation='softmax')\n    def call(self, v): return self.z(self.a(v))\nmodel = Net()",
        "x, c",
    ),
    _model(
        "regularised",
        "model = keras.Sequential([keras.layers.Dense(8, kernel_regularizer='l2'), keras.layers.Dense(3, activation='softmax', bias_regularizer=keras.regularizers.L1(0.01))])",
        "x, c",
    ),
    _model(
        "constrained",
        "model = keras.Sequential([keras.layers.Dense(8, kernel_constraint='max_norm'), keras.layers.Dense(3, activation='softmax', kernel_constraint='non_neg')])",
        "x, c",
    ),
    _model(
        "autoencoder",
        "model = keras.Sequential([keras.layers.Dense(4, activation='relu'), keras.layers.Dense(12)])",
        "x, x",
        "'mse'",
    ),
    _model(
        "frozen",
        "model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(3, activation='softmax')])\nmodel.build((None, 12)); model.layers[0].trainable = False",
        "x, c",
    ),
    _model(
        "normalised",
        "n = keras.layers.Normalization(); n.adapt(x)\nmodel = keras.Sequential([n, keras.layers.Dense(3, activation='softmax')])",
        "x, c",
    ),
    _model(
        "wide-deep",
        "a = keras.Input((12,)); d = keras.layers.Dense(6, activation='relu')(a)\nmodel = keras.Model(a, keras.layers.Dense(3, activation='softmax')(keras.layers.concatenate([a, d])))",
        "x, c",
        optimizer="Adam(0.01)",
    ),
    _model(
        "attention",
        _SERIES
        + "a = keras.Input((6, 3)); h = keras.layers.MultiHeadAttention(2, 4)(a, a)\nmodel = keras.Model(a, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(h + a))))",
        "s, t",
        "'mse'",
    ),
    *(
        _model(
            f"rows-{name}",
            f"a = keras.Input((12,)); h = keras.layers.Dense(8, activation='tanh')(a)\nh = {mixed}\nmodel = keras.Model(a, keras.layers.Dense(1)(h))",
            "x, r",
            "'mse'",
        )
        for name, mixed in (
            ("lambda", "keras.layers.Lambda(lambda v: v - keras.ops.mean(v, axis=0, keepdims=True))(h)"),
            ("operation", "h - keras.ops.mean(h, axis=0, keepdims=True)"),
            ("softmax", "keras.layers.Softmax(axis=0)(h)"),
            ("unit", "keras.layers.UnitNormalization(axis=0)(h)"),
        )
    ),
    *(
        _sequential(f"loss-{name}", "", f"keras.layers.Dense({units})", f"x, {labels}", loss, optimizer="SGD(0.002)")
        for name, units, labels, loss in (
            ("unreduced", "1", "r", "keras.losses.MeanSquaredError(reduction=None)"),
            ("dice", "1, activation='sigmoid'", "b", "'dice'"),
            ("circle", "4), keras.layers.UnitNormalization(", "c", "keras.losses.Circle()"),
            ("cosine", "1", "r", "keras.losses.CosineSimilarity(axis=0)"),
        )
    ),
    *(
        _model(
            f"position-{repeated}{o.split('(')[0]}",
            _WORDS + "a = keras.Input((s.shape[1],)); h = keras.layers.Embedding(30, 8)(a)\n"
            "class Places(keras.layers.Layer):\n    def __init__(self):\n        super().__init__()\n        self.p = keras.layers.Embedding(s.shape[1], 8)\n    def call(self, v): return v + self.p("
            + places
            + ")\n"
            "model = keras.Model(a, keras.layers.Dense(1, activation='sigmoid')(keras.layers.Flatten()(Places()(h))))",
            "s, t",
            "'binary_crossentropy'",
            optimizer=o,
        )
        for repeated, places in (("", "tf.range(s.shape[1])"), ("repeated-", "tf.range(s.shape[1]) // 2"))
        for o in ("Adam(0.01)", "SGD(0.1)")
    ),
    _model(
        "seq-labels",
        _SERIES
        + "t = s[:, :, :1]\nmodel = keras.Sequential([keras.layers.GRU(5, return_sequences=True), keras.layers.Dense(1)])",
        "s, t",
        "'mse'",
    ),
    _model(
        "masked-labels",
        _WORDS
        + "t = s % 3\nmodel = keras.Sequential([keras.layers.Embedding(30, 8, mask_zero=True), keras.layers.GRU(5, return_sequences=True), keras.layers.Dense(3, activation='softmax')])",
        "s, t",
        compile="metrics=['accuracy']",
    ),
    _model(
        "dropout",
        "model = keras.Sequential([keras.layers.Dense(32, activation='relu'), keras.layers.Dropout(0.3), keras.layers.Dense(3, activation='softmax')])",
        "x, c",
    ),
    _model(
        "noise",
        "model = keras.Sequential([keras.layers.GaussianNoise(0.1), keras.layers.Dense(3, activation='softmax')])",
        "x, c",
    ),
    _model(
        "half",
        "keras.mixed_precision.set_global_policy('mixed_bfloat16')\nmodel = keras.Sequential([keras.layers.Dense(16, activation='relu'), keras.layers.Dense(3, activation='softmax', dtype='float32')])",
        "x, c",
        rtol=0.02,
    ),
    _model(
        "float64",
        "keras.backend.set_floatx('float64')\nmodel = keras.Sequential([keras.layers.Dense(8, activation='relu'), keras.layers.Dense(3, activation='softmax')])",
        "x, c",
    ),
]
_STEP = (
    HEAD
    + """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.a, self.z = keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)
        self.seen = keras.metrics.Mean(name='seen')
    def call(self, v): return self.z(self.a(v))
    def train_step(self, data):
        v, t = data
        with tf.GradientTape() as tape:
            p = self(v, training=True)
            $loss
        gradients = tape.gradient(loss, self.trainable_variables)
        $between
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.seen.update_state(loss)
        return {'loss': $out}
    @property
    def metrics(self): return [self.seen]
model = Net()
model.compile(optimizer=keras.optimizers.SGD(0.02), loss='mse')
history = model.fit(x, r, batch_size=32, epochs=2, shuffle=False, verbose=0)
report(loss=history.history['loss'], weights=[float(np.abs(v).sum()) for v in model.get_weights()])
"""
)
SCRIPTS += [
    Script(name=f"step-{name}", source=fill(_STEP, loss=loss, between=between, out=out))
    for name, loss, between, out in (
        ("compute", "loss = self.compute_loss(y=t, y_pred=p)", "pass", "self.seen.result()"),
        ("mean", "loss = tf.reduce_mean(tf.square(t - p))", "pass", "loss"),
        ("object", "loss = keras.losses.MeanSquaredError()(t, p)", "pass", "self.seen.result()"),
        (
            "sum-object",
            "loss = 0.05 * keras.losses.MeanSquaredError(reduction='sum')(t, p)",
            "pass",
            "self.seen.result()",
        ),
        (
            "clipped",
            "loss = tf.reduce_mean(tf.square(t - p))",
            "gradients, _ = tf.clip_by_global_norm(gradients, 0.05)",
            "loss",
        ),
        (
            "clipped-each",
            "loss = tf.reduce_mean(tf.square(t - p))",
            "gradients = [tf.clip_by_norm(g, 0.02) for g in gradients]",
            "loss",
        ),
        ("sum", "loss = 0.05 * tf.reduce_sum(tf.square(t - p))", "pass", "loss"),
        (
            "ascent",
            "loss = tf.reduce_mean(tf.square(t - p))",
            """norm = tf.linalg.global_norm(gradients)
        moves = [0.05 * g / (norm + 1e-12) for g in gradients]
        [k.assign_add(e) for k, e in zip(self.trainable_variables, moves)]
        with tf.GradientTape() as second: again = tf.reduce_mean(tf.square(t - self(v, training=True)))
        gradients = second.gradient(again, self.trainable_variables)
        [k.assign_sub(e) for k, e in zip(self.trainable_variables, moves)]""",
            "loss",
        ),
    )
]
_PARTS = (
    HEAD
    + """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.a = keras.Sequential([keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(4)])
        self.z = keras.Sequential([keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(12)])
        self.seen = keras.metrics.Mean(name='loss')
    $compile
    def train_step(self, data):
        $step
    @property
    def metrics(self): return [self.seen]
model = Net()
model.compile($optimizers)
history = model.fit(x, batch_size=32, epochs=2, shuffle=False, verbose=0)
report(loss=history.history['loss'], weights=[float(np.abs(v).sum()) for v in (*model.a.get_weights(), *model.z.get_weights())])
"""
)
_DECODED = """with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(data - self.z(self.a(data))))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights))
        self.seen.update_state(loss)
        return {'loss': self.seen.result()}"""
_AGAINST = """false = self.z(data[:, :4])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.softplus(self.a(false)) + tf.nn.softplus(-self.a(data)))
        self.d.apply_gradients(zip(tape.gradient(loss, self.a.trainable_weights), self.a.trainable_weights))
        with tf.GradientTape() as tape: fooled = tf.reduce_mean(tf.nn.softplus(-self.a(self.z(data[:, :4]))))
        self.g.apply_gradients(zip(tape.gradient(fooled, self.z.trainable_weights), self.z.trainable_weights))
        self.seen.update_state(loss)
        return {'loss': self.seen.result()}"""
_TWO = """def compile(self, d, g):
        super().compile()
        self.d, self.g = d, g"""
SCRIPTS += [
    Script(name=f"step-without-call-{name}", source=fill(_PARTS, compile=own, step=step, optimizers=optimizers))
    for name, own, step, optimizers in (
        ("autoencoder", "", _DECODED, "optimizer=keras.optimizers.SGD(0.1)"),
        ("adversaries", _TWO, _AGAINST, "keras.optimizers.SGD(0.02), keras.optimizers.SGD(0.02)"),
        ("sums", _TWO, _AGAINST.replace("_mean", "_sum"), "keras.optimizers.SGD(2e-4), keras.optimizers.SGD(2e-4)"),
    )
]
_FREE = {
    "folds": """
found = []
for k in range(3):
    test = np.arange(300) % 3 == k
    keras.utils.set_random_seed(k)
    model = keras.Sequential([keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), 'mse')
    history = model.fit(x[~test], r[~test], validation_data=(x[test], r[test]), epochs=2, batch_size=20, shuffle=False, verbose=0)
    found += history.history['loss'] + history.history['val_loss'] + [model.evaluate(x[test], r[test], verbose=0)]
report(folds=found)
""",
    "compiled-again": """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.a, self.z = keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)
    def call(self, v): return self.z(self.a(v))
    def train_step(self, data):
        v, t = data
        with tf.GradientTape() as tape:
            e = tf.square(t - self(v, training=True))
            loss = 0.02 * tf.reduce_sum(e) if self.summed else tf.reduce_mean(e)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return {'loss': loss}
model, found = Net(), []
for model.summed in (False, True, False):
    model.compile(keras.optimizers.SGD(0.02))
    found += model.fit(x, r, epochs=2, batch_size=20, shuffle=False, verbose=0).history['loss']
report(loss=found, weights=[float(np.abs(v).sum()) for v in model.get_weights()])
""",
    "own-layer-metrics": """
class Own(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.d = keras.layers.Dense(3)
    def call(self, v): return keras.ops.softmax(self.d(v))
model = keras.Sequential([keras.Input((12,)), Own()])
model.compile(keras.optimizers.SGD(0.05), 'sparse_categorical_crossentropy', metrics=['accuracy'])
history = model.fit(x, c, validation_data=(x[:100], c[:100]), epochs=2, batch_size=20, shuffle=False, verbose=0).history
report(history=[v for k in sorted(history) for v in history[k]])
""",
    "position-loop": """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.w, self.p, self.z = keras.layers.Embedding(30, 8), keras.layers.Embedding(7, 8), keras.layers.Dense(1)
    def call(self, v): return self.z(keras.ops.reshape(self.w(v) + self.p(tf.range(7)), (-1, 56)))
s = rng.randint(1, 30, (120, 7)); t = (s[:, :1] > 15).astype('float32')
model, o, found = Net(), keras.optimizers.Adam(0.02), []
@tf.function
def step(v, t):
    with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(t - model(v)))
    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
for e in range(3):
    for v, u in tf.data.Dataset.from_tensor_slices((s, t)).batch(20): found.append(float(step(v, u)))
report(loss=found, weights=[float(np.abs(v).sum()) for v in model.get_weights()])
""",
    "hits-counted": """
model, o, correct, seen = keras.Sequential([keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(3)]), keras.optimizers.SGD(0.1), 0, []
@tf.function
def step(v, t):
    with tf.GradientTape() as tape:
        p = model(v)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(t, p))
    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss, tf.reduce_sum(tf.cast(tf.argmax(p, 1, output_type=tf.int32) == t, tf.int32))
for e in range(2):
    correct = 0
    for v, u in tf.data.Dataset.from_tensor_slices((x, c)).batch(20):
        loss, n = step(v, u)
        correct += int(n)
    seen.append(correct / len(x))
report(hits=seen)
""",
    "growing-weight": """
model, o = keras.Sequential([keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)]), keras.optimizers.SGD(0.02)
weight, found = tf.Variable(0.0), []
@tf.function
def step(v, t):
    with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(t - model(v))) + weight * tf.reduce_mean(tf.abs(model(v)))
    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    weight.assign_add(0.02)
    return loss
for e in range(3):
    for v, u in tf.data.Dataset.from_tensor_slices((x, r)).batch(20): found.append(float(step(v, u)))
report(loss=found, weights=[float(np.abs(v).sum()) for v in model.get_weights()])
""",
    "second-model": """
one, two = (keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)]) for _ in range(2))
o, q, found = keras.optimizers.SGD(0.02), keras.optimizers.SGD(0.002), []
@tf.function
def step(v, t):
    with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(t - one(v)))
    o.apply_gradients(zip(tape.gradient(loss, one.trainable_variables), one.trainable_variables))
    return loss
@tf.function
def other(v, t):
    with tf.GradientTape() as tape: loss = tf.reduce_sum(tf.square(t - two(v)))
    q.apply_gradients(zip(tape.gradient(loss, two.trainable_variables), two.trainable_variables))
    return loss
for e in range(3):
    for i, (v, u) in enumerate(tf.data.Dataset.from_tensor_slices((x, r)).batch(20)):
        found.append(float(step(v, u)))
        if i % 5 == 4: found.append(float(other(v, u)))
report(loss=found, weights=[float(np.abs(v).sum()) for v in (*one.get_weights(), *two.get_weights())])
""",
    "tape-and-on-batch": """
one, two = (keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)]) for _ in range(2))
o, found = keras.optimizers.SGD(0.02), []
two.compile(keras.optimizers.SGD(0.02), 'mse')
@tf.function
def step(v, t):
    with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(t - one(v)))
    o.apply_gradients(zip(tape.gradient(loss, one.trainable_variables), one.trainable_variables))
    return loss
for e in range(3):
    for v, u in tf.data.Dataset.from_tensor_slices((x, r)).batch(20): found += [float(step(v, u)), float(two.train_on_batch(v, u))]
report(loss=found, weights=[float(np.abs(v).sum()) for v in (*one.get_weights(), *two.get_weights())])
""",
    "persistent-tape": """
model, o, found = keras.Sequential([keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)]), keras.optimizers.SGD(0.02), []
for e in range(2):
    for v, u in tf.data.Dataset.from_tensor_slices((x, r)).batch(20):
        with tf.GradientTape(persistent=True) as tape: loss = tf.reduce_mean(tf.square(u - model(v)))
        o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        found.append(float(loss))
report(loss=found)
""",
    "strategy": """
s = tf.distribute.MirroredStrategy()
with s.scope():
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), 'mse')
history = model.fit(x, r, batch_size=20 * s.num_replicas_in_sync, epochs=2, shuffle=False, verbose=0).history
report(loss=history['loss'])
""",
    "strategy-run": """
s = tf.distribute.MirroredStrategy()
with s.scope():
    model, o = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)]), keras.optimizers.SGD(0.05)
def step(v, t):
    with tf.GradientTape() as tape: loss = tf.nn.compute_average_loss(tf.reduce_sum(tf.square(t - model(v)), 1))
    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
@tf.function
def on_all(v, t): return s.reduce(tf.distribute.ReduceOp.SUM, s.run(step, args=(v, t)), axis=None)
found = []
for e in range(2):
    for v, t in s.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, r)).batch(20)): found.append(float(on_all(v, t)))
report(loss=found)
""",
    "metric-sum": """
model = keras.Sequential([keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
class Hits(keras.metrics.Sum):
    def update_state(self, t, p, sample_weight=None): return super().update_state(tf.cast(tf.abs(t - p) < 0.3, 'float32'))
model.compile(keras.optimizers.SGD(0.05), 'mse', metrics=[Hits(name='hits')])
history = model.fit(x, r, validation_data=(x[:100], r[:100]), epochs=2, batch_size=20, shuffle=False, verbose=0).history
report(hits=history['hits'] + history['val_hits'], evaluate=model.evaluate(x, r, verbose=0))
""",
    "own-test-step": """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.z = keras.layers.Dense(1)
    def call(self, v): return self.z(v)
    def test_step(self, data):
        v, t = data
        return {'error': tf.reduce_sum(tf.square(t - self(v)))}
model = Net()
model.compile(keras.optimizers.SGD(0.02), 'mse')
history = model.fit(x, r, validation_data=(x, r), validation_batch_size=300, epochs=2, batch_size=20, shuffle=False, verbose=0).history
report(loss=history['loss'] + history['val_error'])
""",
}
_REFUSED = {"tape-and-on-batch": "give each a loop of its own", "second-model": "in step 12 the gradient"}
SCRIPTS += [
    Script(name=f"fit-free-{name}", source=HEAD + text, refused=_REFUSED.get(name, "")) for name, text in _FREE.items()
]
