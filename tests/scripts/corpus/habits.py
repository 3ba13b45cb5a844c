"""Ordinary habits that once trained otherwise on ranks, ended with a stack, or were taken for a fault."""

from tests.scripts.corpus import HEAD, Script

_STEP = """
model, o, found = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)]), keras.optimizers.SGD(0.02), []
data = tf.data.Dataset.from_tensor_slices((x, r)).batch(20)
@tf.function
def step(v, t, late=False):
    with tf.GradientTape() as tape:
        p = model(v)
        loss = tf.reduce_mean(tf.square(t - p))
        if late: loss += tf.math.reduce_std(p)
    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
"""
_END = "\nreport(loss=found, weights=[float(np.abs(v).sum()) for v in model.get_weights()])\n"
_FIT = """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.02), 'mse')
"""
_GRAPH = """
import json
import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
rng = np.random.RandomState(0)
x = rng.randn(240, 6).astype('float32'); y = (x[:, :1] > 0).astype('float32')
found = []
def report(**named): print('RESULT', json.dumps(named))
X, Y = tf.placeholder(tf.float32, [None, 6]), tf.placeholder(tf.float32, [None, 1])
w, b = tf.Variable(tf.zeros([6, 1])), tf.Variable(tf.zeros([1]))
logits = tf.matmul(X, w) + b
loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=Y, logits=logits))
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
"""
_HABITS = {
    "later-loss": _STEP
    + """
for epoch in range(3):
    for v, t in data: found.append(float(step(v, t, epoch == 2)))
"""
    + _END,
    "centres": """
class Centres(keras.layers.Layer):
    def build(self, shape): self.centre = self.add_weight(shape=(shape[-1],), initializer='zeros', trainable=False)
    def call(self, v, training=False):
        if training: self.centre.assign(0.5 * self.centre + 0.5 * keras.ops.mean(v, 0))
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(v - self.centre)))
        return v
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), Centres(), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.02), 'mse')
found = model.fit(x, r, batch_size=20, epochs=2, shuffle=False, verbose=0).history['loss']
"""
    + _END,
    "raw-statistics": _STEP
    + """
for v, t in data: found.append(float(step((v - tf.reduce_mean(v, 0)) / tf.math.reduce_std(v, 0), t)))
"""
    + _END,
    "mapped-statistics": _STEP
    + """
for v, t in data.map(lambda v, t: ((v - tf.reduce_mean(v, 0)) / tf.math.reduce_std(v, 0), t)): found.append(float(step(v, t)))
"""
    + _END,
    "magnified-rounding": """
x = 1e4 * rng.randn(300, 12)
s = rng.randn(300, 4)
for b in range(0, 300, 50): s[b:b + 50] -= x[b:b + 50] @ (np.linalg.pinv(x[b:b + 50]) @ s[b:b + 50] - 1e-9)
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4, use_bias=False)])
model.compile(keras.optimizers.SGD(1e-3), lambda s, p: keras.ops.sum(p * s, -1))
model.fit(x.astype('float32'), s.astype('float32'), batch_size=50, epochs=2, shuffle=False, verbose=0)
report(weights=[float(np.abs(v).sum()) for v in model.get_weights()])
""",
    "log-elsewhere": "import os, tempfile\n"
    + _FIT
    + """
folder = tempfile.mkdtemp()
class Log(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        with open(os.path.join(folder, 'log.txt'), 'a') as f: f.write(f'{epoch}\\n')
model.fit(x, r, batch_size=20, epochs=3, shuffle=False, verbose=0, callbacks=[Log(), keras.callbacks.CSVLogger(os.path.join(folder, 'log.csv'))])
found = [len(open(os.path.join(folder, name)).readlines()) for name in ('log.txt', 'log.csv')]
"""
    + _END,
    "drawing-pydataset": _FIT
    + """
draws = np.random.RandomState(3)
class Rows(keras.utils.PyDataset):
    def __len__(self): return 15
    def __getitem__(self, i):
        chosen = draws.randint(0, 300, 20)
        return x[chosen], r[chosen]
found = model.fit(Rows(), epochs=2, shuffle=False, verbose=0).history['loss']
"""
    + _END,
    "zip-of-sums": _STEP.replace("reduce_mean(tf.square", "reduce_sum(0.05 * tf.square")
    + """
other = tf.data.Dataset.from_tensor_slices(x[:, :1]).batch(20)
for (v, t), u in zip(data, other): found.append(float(step(v, t)))
"""
    + _END,
    "accumulating-step": """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.a, self.z, self.n = keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1), tf.Variable(0, trainable=False)
    def build(self, shape):
        self.a.build(shape); self.z.build((None, 8))
        self.sums = [tf.Variable(tf.zeros(w.shape), trainable=False) for w in self.trainable_variables]
    def call(self, v): return self.z(self.a(v))
    def train_step(self, data):
        v, t = data
        self.n.assign_add(1)
        with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(t - self(v, training=True)))
        for s, g in zip(self.sums, tape.gradient(loss, self.trainable_variables)): s.assign_add(g / 4)
        tf.cond(tf.equal(self.n % 4, 0), self.apply, lambda: None)
        return {'loss': loss}
    def apply(self):
        self.optimizer.apply_gradients(zip(self.sums, self.trainable_variables))
        for s in self.sums: s.assign(tf.zeros_like(s))
model = Net(); model.build((None, 12)); model.compile(keras.optimizers.SGD(0.1))
found = model.fit(x, r, batch_size=20, epochs=3, shuffle=False, verbose=0).history['loss']
"""
    + _END,
    "call-of-other-data": """
class Pairs(keras.Model):
    def __init__(self, net):
        super().__init__()
        self.net, self.seen = net, keras.metrics.Mean(name='loss')
    def call(self, v): return self.net(v)
    def train_step(self, data):
        v, t, u = data
        with tf.GradientTape() as tape: loss = tf.square(t - self.net(v)) + 0.1 * tf.square(self.net(u))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.net.trainable_weights), self.net.trainable_weights))
        self.seen.update_state(loss)
        return {'loss': self.seen.result()}
net = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
model = Pairs(net); model.compile(keras.optimizers.SGD(0.002))
found = model.fit(tf.data.Dataset.from_tensor_slices((x, r, x[::-1])).batch(20), epochs=2, verbose=0).history['loss']
"""
    + _END,
    "loss-added-by-row": """
class End(keras.layers.Layer):
    def call(self, t, p):
        self.add_loss(0.05 * tf.square(t - p))
        return p
a, t = keras.Input((12,), name='v'), keras.Input((1,), name='t')
model = keras.Model([a, t], End()(t, keras.layers.Dense(1)(keras.layers.Dense(8, activation='tanh')(a))))
model.compile(keras.optimizers.SGD(0.02))
found = model.fit(tf.data.Dataset.from_tensor_slices({'v': x, 't': r}).batch(21), epochs=2, verbose=0).history['loss']
"""
    + _END,
    "draws-without-seed": """
class Noise(keras.layers.Layer):
    def call(self, v): return v + 0.3 * keras.random.normal(shape=keras.ops.shape(v))
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), Noise(), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.02), 'mse')
found = model.fit(x, r, batch_size=20, epochs=2, shuffle=False, verbose=0).history['loss']
"""
    + _END,
    "nothing-trainable": _FIT
    + """
idle = keras.Sequential([keras.Input((12,)), keras.layers.ActivityRegularization(0.01), keras.layers.Lambda(lambda v: v[:, :1])])
idle.compile(keras.optimizers.SGD(0.02), 'mse')
found = [*idle.fit(x, r, batch_size=20, verbose=0).history['loss'], *model.fit(x, r, batch_size=20, shuffle=False, verbose=0).history['loss']]
"""
    + _END,
    "keras-shuffle": _FIT
    + """
order = keras.ops.convert_to_numpy(keras.random.shuffle(np.arange(300), seed=4))
found = model.fit(x[order], r[order], batch_size=20, epochs=2, shuffle=False, verbose=0).history['loss']
"""
    + _END,
    "fgsm": _STEP
    + """
for v, t in data:
    with tf.GradientTape() as tape:
        tape.watch(v)
        wrong = tf.reduce_mean(tf.square(t - model(v)))
    found.append(float(step(v + 0.1 * tf.sign(tape.gradient(wrong, v)), t)))
"""
    + _END,
    "rate-by-samples": _STEP
    + """
seen = 0
for v, t in data:
    seen += len(v)
    o.learning_rate.assign(0.05 / (1 + seen / 100))
    found.append(float(step(v, t)))
"""
    + _END,
    "saved-model": "import tempfile\n"
    + _STEP
    + """
for v, t in data: found.append(float(step(v, t)))
place = tempfile.mkdtemp()
tf.saved_model.save(model, place)
found.append(float(tf.reduce_mean(tf.saved_model.load(place).signatures['serving_default'](tf.constant(x))['output_0'])))
"""
    + _END,
    "h5py-written": "import h5py\nwith h5py.File('d.h5', 'w') as f: f['x'] = x\nwith h5py.File('d.h5') as f: x = f['x'][:]\n"
    + _FIT
    + """
found = model.fit(x, r, batch_size=20, epochs=2, shuffle=False, verbose=0).history['loss']
"""
    + _END,
    "cache-file": _STEP
    + """
for epoch in range(2):
    for v, t in data.cache('kept'): found.append(float(step(v, t)))
"""
    + _END,
    "two-rows": _STEP
    + """
for v, t in tf.data.Dataset.from_tensor_slices((x[:60], r[:60])).batch(2): found.append(float(step(v, t)))
"""
    + _END,
    "towers": """
one, two, o, found = keras.layers.Dense(6), keras.layers.Dense(6), keras.optimizers.SGD(0.05), []
model = keras.Sequential([keras.Input((12,)), one]); two.build((None, 12))
@tf.function
def step(v, u):
    with tf.GradientTape() as tape:
        logits = tf.matmul(model(v), two(u), transpose_b=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(v)[0]), logits))
    k = model.trainable_variables + two.trainable_variables
    o.apply_gradients(zip(tape.gradient(loss, k), k))
    return loss
for v in tf.data.Dataset.from_tensor_slices(x).batch(20): found.append(float(step(v, v + 0.1)))
"""
    + _END,
    "resting-hinge": """
class Net(keras.Model):  # its first batch has no gradient that would show whether it is a sum or a mean
    def call(self, v): return self.last(v)
    def train_step(self, data):
        v, t = data
        with tf.GradientTape() as tape: loss = tf.maximum(t - self(v), 0.0)
        k = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, k), k))
        return dict(loss=tf.reduce_sum(loss))
model = Net(); model.last = keras.layers.Dense(1)
model.compile(keras.optimizers.SGD(0.01))
t = np.concatenate([r[:80] - 100, r[80:]])
found = model.fit(x, t, epochs=2, batch_size=40, shuffle=False, verbose=0).history['loss']
"""
    + _END,
    "penalty-on-positions": _STEP.replace(
        "        if late: loss += tf.math.reduce_std(p)\n",
        "        loss += 0.1 * tf.reduce_mean(tf.square(p) * tf.cast(tf.range(tf.shape(p)[0])[:, None] % 2, tf.float32))\n",
    )
    + """
for v, t in data: found.append(float(step(v, t)))
"""
    + _END,
    "session-local-variables": _GRAPH
    + """
hits, update = tf.metrics.accuracy(Y, tf.cast(logits > 0, tf.float32))
with tf.Session() as s:
    s.run(tf.global_variables_initializer())
    for epoch in range(3):
        s.run(tf.local_variables_initializer())
        for i in range(0, 240, 40): found.append(float(s.run([train, loss, update], {X: x[i:i + 40], Y: y[i:i + 40]})[1]))
        s.run(tf.local_variables_initializer())
        s.run(update, {X: x, Y: y}); found.append(float(s.run(hits)))
report(found=found)
""",
    "session-two-tasks": _GRAPH
    + """
Z = tf.placeholder(tf.float32, [None, 1])
other = tf.reduce_mean(tf.square(tf.matmul(X, tf.Variable(tf.zeros([6, 1]))) - Z))
second = tf.train.GradientDescentOptimizer(0.1).minimize(other)
with tf.Session() as s:
    s.run(tf.global_variables_initializer())
    for i in range(0, 240, 20):
        found.append(float(s.run([train, loss], {X: x[i:i + 20], Y: y[i:i + 20]})[1]))
        found.append(float(s.run([second, other], {X: x[i:i + 20], Z: x[i:i + 20, 1:2]})[1]))
report(found=found)
""",
    "session-sparse": _GRAPH[: _GRAPH.index("train =")]
    + """
S = tf.sparse_placeholder(tf.float32, [None, 6])
part = tf.reduce_mean(tf.square(tf.sparse_tensor_dense_matmul(S, w) - Y))
step = tf.train.GradientDescentOptimizer(0.1).minimize(part)
with tf.Session() as s:
    s.run(tf.global_variables_initializer())
    for i in range(0, 240, 40):
        v = x[i:i + 40] * (x[i:i + 40] > 0); at = np.argwhere(v)
        found.append(float(s.run([step, part], {S: tf.SparseTensorValue(at, v[tuple(at.T)], v.shape), Y: y[i:i + 40]})[1]))
report(found=found)
""",
}
_TOLD = {"magnified-rounding": "what magnifies rounding so cannot be judged"}
_REFUSED = {"rate-by-samples": "in step 7 the gradient", "session-two-tasks": "does not feed placeholder"}
SCRIPTS = [
    Script(
        name=f"habit-{name}",
        source=text if name.startswith("session") else HEAD + text,
        told=_TOLD.get(name, ""),
        refused=_REFUSED.get(name, ""),
    )
    for name, text in _HABITS.items()
]
