"""Losses that are no mean or sum over rows: of pairs, of what a mask keeps, of a batch's statistics; and healthy ones."""

from tests.scripts.corpus import HEAD, Script, fill
from tests.scripts.corpus.fit import _STEP
from tests.scripts.corpus.loops import _loop as loop
from tests.scripts.corpus.sessions import _session as session

_ERROR = "tf.reduce_mean(tf.square(t - p))"
_MIXING = {
    "pairs": "loss = tf.reduce_mean(tf.square((t - tf.transpose(t)) - (p - tf.transpose(p))))",
    "negatives": "n = tf.range(tf.shape(p)[0]); loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(n, -tf.square(p - tf.transpose(t))))",
    "hardest": "loss = tf.reduce_mean(tf.reduce_max(tf.abs(t - tf.transpose(t)) * tf.square(p - tf.transpose(p)), 1)) + "
    + _ERROR,
    "masked": "m = tf.cast(t > 0.2, tf.float32); loss = tf.reduce_sum(m * tf.square(t - p)) / tf.reduce_sum(m)",
    "whitened": f"loss = {_ERROR} + 0.1 * tf.square(tf.math.reduce_variance(p) - 1)",
    "root": f"loss = tf.sqrt({_ERROR} + 1e-6)",
}


def _layer(text: str) -> str:
    return (
        "model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), "
        f"keras.layers.{text}, keras.layers.Dense(1)])"
    )


_WORDS = """
lengths = rng.randint(2, 8, (300, 1))
words = rng.randint(1, 3 + 2 * lengths, (300, 7)) * (np.arange(7) < lengths)
model = keras.Sequential([keras.layers.Embedding(20, 6), keras.layers.Dense(20)])
model(words[:2])
o = keras.optimizers.Adam(0.05)
ce = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction='none')
@tf.function
def step(v):
    with tf.GradientTape() as tape:
        m = tf.cast(v[:, 1:] != 0, tf.float32)
        loss = tf.reduce_sum(m * ce(v[:, 1:], model(v[:, :-1]))) / tf.reduce_sum(m)
    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
report(losses=[float(step(v)) for e in range(3) for v in tf.data.Dataset.from_tensor_slices(words).batch(40)])
"""
_VARIATIONAL = "p = model(v, training=True) + 0.05 * tf.random.normal(tf.shape(t)); loss = " + _ERROR
_FED = "tf.square(logits - Y)"
_ON_BATCH = """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.a, self.z = keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)
    def call(self, v): return self.z(self.a(v))
    def train_step(self, data):
        v, t, _ = data
        with tf.GradientTape() as tape:
            p = self(v, training=True)
            $loss
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return {'loss': loss}
model = Net()
model.compile(optimizer=keras.optimizers.SGD(0.02), loss='mse')
report(losses=[float(model.train_on_batch(x[i:i + 60], r[i:i + 60], return_dict=True)['loss']) for e in range(3) for i in range(0, 300, 60)])
"""
_ARRAYS_DROPOUT = """
o = keras.optimizers.Adam(0.01)
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
@tf.function
def step(v, t):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(t - model(v, training=True)))
    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
report(losses=[float(step(x[k:k + 50], r[k:k + 50])) for i in range(30) for k in [50 * (i % 6)]])
"""
SCRIPTS = [
    Script(name="arrays-dropout", source=HEAD + _ARRAYS_DROPOUT),
    *(script for name, loss in _MIXING.items() for script in loop(f"rows-{name}", loss=loss)),
    *loop("rows-pairs-dropout", before=_layer("Dropout(0.3)"), loss=_MIXING["pairs"]),
    *loop("rows-masked-normalised", before=_layer("BatchNormalization()"), loss=_MIXING["masked"]),
    *loop("healthy-dropout", before=_layer("Dropout(0.3)")),
    *loop("healthy-normalised", before=_layer("BatchNormalization()")),
    *loop("healthy-noise", loss=_VARIATIONAL, rtol=0.5),
    Script(name="free-rows-words", source=HEAD + _WORDS),
    *(
        Script(name=f"step-rows-{name}", source=fill(_STEP, loss=loss, between="pass", out="loss"))
        for name, loss in _MIXING.items()
    ),
    Script(name="free-on-batch-own", source=HEAD + fill(_ON_BATCH, loss="loss = " + _ERROR)),
    Script(name="free-rows-on-batch", source=HEAD + fill(_ON_BATCH, loss=_MIXING["pairs"])),
    session("rows-pairs", loss="tf.reduce_mean(tf.square((Y - tf.transpose(Y)) - (logits - tf.transpose(logits))))"),
    session("rows-masked", loss=f"tf.reduce_sum(tf.abs(X[:, 1:2]) * {_FED}) / tf.reduce_sum(tf.abs(X[:, 1:2]))"),
]
