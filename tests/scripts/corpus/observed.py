"""What a script observes of its training beside the loss: counters, rows, prints, and what mixes rows only later."""

from tests.scripts.corpus import HEAD, Script

_LOOP = """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.05)
dataset = tf.data.Dataset.from_tensor_slices((x, r)).batch(50)
counts = tf.Variable(tf.zeros([2], tf.int32), trainable=False, name='counts')
@tf.function
def step(v, t):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(v, training=True) - t))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    INSIDE
    return loss
losses = []
seen = 0
for epoch in range(3):
    for v, t in dataset:
        losses.append(float(step(v, t)))
        BEHIND
"""
_FIT = """
class Own(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = tf.Variable(0, dtype=tf.int64, trainable=False)
    def train_step(self, data):
        v, t = data
        with tf.GradientTape() as tape:
            errors = tf.square(self(v, training=True) - t)
            kept = tf.cast((t > 0) | (self.seen < LATE), tf.float32)
            loss = tf.reduce_sum(errors * kept) / tf.reduce_sum(kept)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        seen = self.seen.assign_add(COUNT)
        self.optimizer.learning_rate.assign(tf.where(seen > 400, 0.01, 0.05))
        return {'loss': loss}
inputs = keras.Input((12,))
model = Own(inputs, keras.layers.Dense(1)(keras.layers.Dense(8, activation='tanh')(inputs)))
model.compile(optimizer=keras.optimizers.SGD(0.05))
losses = model.fit(x, r, batch_size=50, epochs=12, shuffle=False, verbose=0).history['loss']
report(losses=losses, seen=int(model.seen), rate=float(model.optimizer.learning_rate))
"""
_COUNTED = "counts.assign_add(tf.reduce_sum(tf.one_hot(tf.cast(t[:, 0] > 0, tf.int32), 2, dtype=tf.int32), 0))"
_PRINTED = "tf.print(loss, output_stream='file://losses.log')"
_APPENDED = "with open('losses.txt', 'a') as file: file.write(f'{losses[-1]:.5f}\\n')"
_READ = "report(losses=losses, logged=[float(line) for line in open('losses.log')])"


def _loop(inside: str, behind: str, end: str) -> str:
    return _LOOP.replace("INSIDE", inside).replace("BEHIND", behind) + end


def _fit(count: str, late: int) -> str:
    return _FIT.replace("COUNT", count).replace("LATE", str(late))


_DRAWN = """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
o, losses = keras.optimizers.SGD(0.05), []
COMPILED
def step(v, t):
    with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(model(v + DRAW) - t))
    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
for v, t in tf.data.Dataset.from_tensor_slices((x, r)).batch(30): losses.append(float(step(v, t)))
report(losses=losses)
"""
# Numbers that an eager loop keeps as tensors; they are taken at the end of an epoch, which has more steps than are
# compared.
_KEPT = """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.05)
dataset = tf.data.Dataset.from_tensor_slices((x, r)).batch(12)
means, counts, rates = [], [], []
for epoch in range(3):
    errors, hits = [], []
    for v, t in dataset:
        with tf.GradientTape() as tape:
            found = model(v, training=True)
            loss = tf.reduce_mean(tf.square(found - t))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        errors.append(tf.reduce_mean(tf.abs(found - t)))
        hits.append(tf.reduce_sum(tf.cast(tf.abs(found - t) < 0.4, tf.int32)))
    means.append(float(np.mean(errors)))
    counts.append(int(np.sum(hits)))
    optimizer.learning_rate.assign(0.05 * means[-1])
    rates.append(float(optimizer.learning_rate))
report(means=means, counts=counts, rates=rates)
"""
# A second training to which its witness does not come.
_LEFT = """
import os
def train():
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
    model.compile('sgd', 'mse')
    return model.fit(x, r, batch_size=30, epochs=2, verbose=0).history['loss']
losses = train()
if os.readlink('/proc/self/fd/1').endswith('witness.log'): os.kill(os.getpid(), 9)
report(losses=losses + train())
"""


def _drawn(draw: str, compiled: str) -> str:
    return _DRAWN.replace("DRAW", draw).replace("COMPILED", compiled)


_SCRIPTS = {
    "rows-counted": _fit("tf.shape(v, tf.int64)[0]", 10**9),
    "rows-taken": _loop("pass", "seen += len(v)", "report(losses=losses, seen=seen)\n"),
    "rows-of-shape": _loop("pass", "seen += v.shape[0]", "report(losses=losses, seen=seen)\n"),
    "rows-by-numpy": _loop("pass", "seen += float(np.sum(v))", "report(losses=losses, seen=seen)\n"),
    "array-later": _loop("pass", "if len(losses) > 6: seen += float(np.sum(v))", "report(losses=losses, seen=seen)\n"),
    "last-row-printed": _loop("pass", "print('last row', *v[-1, :2].numpy())", "report(losses=losses)\n"),
    "numbers-kept": _KEPT,
    "losses-appended": _loop("pass", _APPENDED, "report(losses=losses, lines=len(open('losses.txt').readlines()))\n"),
    "process-printed": _loop("pass", "import os; print('process', os.getpid(), losses[-1])", "report(losses=losses)\n"),
    "rows-printed": _loop(_PRINTED, "pass", _READ),
    "rows-drawn-otherwise": _drawn("0.2 * tf.random.gamma(tf.shape(v), 1.0)", "@tf.function"),
    "rows-drawn-eagerly": _drawn("tf.random.normal(tf.shape(v))", ""),
    "witness-left": _LEFT,
    "class-counts": _loop(_COUNTED, "pass", "report(losses=losses, counts=counts.numpy())\n"),
    "mixed-later": _fit("1", 40),
}
_REFUSED = {
    "class-counts": "the variable 'counts' made in",
    "mixed-later": "of a training mixes the rows of its batch",
    "array-later": "that is of a rank's part of a batch",
    "last-row-printed": "prints: 'last row",
}
SCRIPTS = [
    Script(name=f"observed-{name}", source=HEAD + body, refused=_REFUSED.get(name, ""))
    for name, body in _SCRIPTS.items()
]
