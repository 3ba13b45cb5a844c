"""What draws at random in healthy ways: shuffles, dropout, augmentation, rows mixed by chance."""

from tests.scripts.corpus import HEAD, Script

_MODELS = (
    HEAD
    + """
images, labels = rng.rand(160, 8, 8, 1).astype('float32'), rng.randint(0, 2, 160)
def image_model(*layers):
    found = keras.Sequential([keras.Input((8, 8, 1)), *layers, keras.layers.Flatten(), keras.layers.Dense(2)])
    found.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(True), metrics=['accuracy'])
    return found
def plain_model(*layers):
    found = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), *layers, keras.layers.Dense(1)])
    found.compile(keras.optimizers.Adam(0.01), 'mse', metrics=['mae'])
    return found
"""
)
_ROWS = "tf.data.Dataset.from_tensor_slices((x, r))"
_FITS = {  # what is trained on what, and how far the losses may part
    "arrays": ("plain_model()", "x, r, epochs=3", 2e-3),
    "split": ("plain_model()", "x, r, epochs=3, validation_split=0.2, batch_size=25", 2e-3),
    "dataset": ("plain_model()", f"{_ROWS}.shuffle(100).batch(40), epochs=3", 0.1),
    "dataset-twice": ("plain_model()", f"{_ROWS}.shuffle(300).repeat(3).batch(32).shuffle(4)", 0.1),
    "alpha-dropout": ("plain_model(keras.layers.AlphaDropout(0.2))", "x, r, epochs=3", 2e-3),
    "gaussian-dropout": ("plain_model(keras.layers.GaussianDropout(0.2))", "x, r, epochs=3", 2e-3),
    "dropout-normalised": (
        "plain_model(keras.layers.BatchNormalization(), keras.layers.Dropout(0.5))",
        "x, r, epochs=3",
        2e-3,
    ),
    "augmented": (
        "image_model(keras.layers.RandomFlip(), keras.layers.RandomRotation(0.1), keras.layers.RandomZoom(0.1))",
        "images, labels, epochs=3",
        2e-3,
    ),
    "augmented-data": (
        "image_model()",
        "tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(160).map(change).batch(32), epochs=3",
        0.3,
    ),
    "own-numbers": ("plain_model(keras.layers.Lambda(abs))", "Numbered(), epochs=2", 2e-3),
    "mixed-rows": ("plain_model()", "Mixed(), epochs=3", 0.1),
    "recurrent-dropout": (
        "keras.Sequential([keras.layers.Reshape((4, 3)), keras.layers.LSTM(5, dropout=0.2, recurrent_dropout=0.2), keras.layers.Dense(1)])",
        "x, r, epochs=3",
        2e-3,
    ),
}
_FIT = """
import random, time
def change(i, t): return tf.image.random_brightness(tf.image.random_flip_left_right(i), 0.2), t
class Mixed(keras.utils.PyDataset):
    def __len__(self): return 6
    def __getitem__(self, i):
        a, b, part = np.random.randint(0, 300, 50), np.random.randint(0, 300, 50), np.random.beta(0.4, 0.4, (50, 1)).astype('float32')
        return part * x[a] + (1 - part) * x[b], part * r[a] + (1 - part) * r[b]
class Numbered(keras.utils.PyDataset):  # in a thread, which the trial of the first batch does not wait for
    def __len__(self): return 6
    def __getitem__(self, i):
        rows = [(time.sleep(0.01), random.randrange(300))[1] for _ in range(30)]
        return x[rows], r[rows]
model = {model}
if not model.compiled: model.compile('adam', 'mse')
report(loss=model.fit({data}, verbose=0).history['loss'])
"""
_LOOP = f"""
model, o = plain_model(), keras.optimizers.Adam(0.01)
@tf.function
def step(v, t):
    with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(t - model(v, training=True)))
    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
report(loss=[float(step(v, t)) for e in range(4) for v, t in {_ROWS}.shuffle(300).batch(40)])
"""
_STATEFUL = """
class Path(keras.layers.Layer):
    def call(self, v): return v * tf.floor(0.7 + tf.random.uniform((tf.shape(v)[0], 1)))
class Noise(keras.layers.Layer):
    generator = tf.random.Generator.from_seed(3)
    def call(self, v): return v + 0.3 * self.generator.normal(tf.shape(v)) + 0.1 * self.generator.truncated_normal(tf.shape(v)[:1])[:, None]
class Drop(keras.layers.Layer):
    def call(self, v): return tf.nn.dropout(v, 0.4)
class Latent(keras.Model):
    def train_step(self, data):
        v, t = data
        with tf.GradientTape() as tape:
            drawn = tf.random.normal([tf.shape(v)[0], 12]) + 0.1 * tf.random.normal([12])
            loss = tf.reduce_mean(tf.square(self(v + drawn, training=True) - t))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return dict(loss=loss)
class Stacked(keras.Model):  # made and real rows one behind another, as GANs have them
    def train_step(self, data):
        v, t = data
        both, wanted = tf.concat([v + tf.random.normal([tf.shape(v)[0], 12]), v], 0), tf.concat([-t, t], 0)
        wanted += 0.5 * tf.random.uniform(tf.shape(wanted))
        with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(self(both, training=True) - wanted))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return dict(loss=loss)
flip = keras.Sequential([keras.layers.RandomFlip()])
class Outside(keras.Model):  # draws in layers that are not its own, and is built by its first step
    def build(self, shape):
        self.first, self.last, self.shift = keras.layers.Dense(8), keras.layers.Dense(1), self.add_weight(shape=(1,))
        super().build(shape)
    def call(self, v):
        return self.last(self.first(tf.reshape(flip(tf.reshape(v, (-1, 4, 3, 1))), (-1, 12)))) + self.shift
model = {model}
model.compile(keras.optimizers.Adam(0.01), 'mse', jit_compile=False)
report(loss=model.fit(x, r, epochs=3, batch_size=45, verbose=0).history['loss'])
report(same=[model.evaluate(x[:n], r[:n], batch_size=24, verbose=0) for n in (30, 96)])  # the second has equal parts
"""
_LATENT = (
    "Latent(*(lambda i: (i, keras.layers.Dense(1)(keras.layers.Dense(8, activation='tanh')(i))))(keras.Input((12,))))"
)
_STACKED = (
    "Stacked(*(lambda i: (i, keras.layers.Dense(1)(Drop()(keras.layers.Dropout(0.3)(keras.layers.Dense(8)(i))))))"
    "(keras.Input((12,))))"
)
SCRIPTS = [
    *(
        Script(name=f"drawn-stateful-{name}", source=_MODELS + _STATEFUL.format(model=model))
        for name, model in (
            ("path", "plain_model(Path())"),
            ("generator", "plain_model(Noise())"),
            ("dropout", "plain_model(Drop())"),
            ("step", _LATENT),
            ("stacked", _STACKED),
            ("outside", "Outside()"),
        )
    ),
    *(
        Script(name=f"drawn-{name}", source=_MODELS + _FIT.format(model=model, data=data), rtol=rtol)
        for name, (model, data, rtol) in _FITS.items()
    ),
    Script(name="drawn-loop", source=_MODELS + _LOOP, rtol=0.3),
]
