"""Several trainings in one script, each known by itself; and what decides how long a training goes on, or moves in it."""

from tests.scripts.corpus import HEAD, Script

_NET = "keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])"
_STEP = f"""
model, o, found = {_NET}, keras.optimizers.SGD(0.02), []
data = tf.data.Dataset.from_tensor_slices((x, r)).batch(20)
@tf.function
def step(v, t):
    with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(t - model(v)))
    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
"""
_END = "\nreport(loss=found, weights=[float(np.abs(v).sum()) for v in model.get_weights()])\n"
_FOLDS = f"""
found = []
for fold in range(3):
    chosen = np.arange(300) % 3 != fold
    model, o = {_NET}, keras.optimizers.SGD(0.02)
    $decorator
    def step(v, t):
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(tf.reduce_sum(tf.square(t - model(v)), 1), global_batch_size=40)
        o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss
    for epoch in range(2):
        for v, t in tf.data.Dataset.from_tensor_slices((x[chosen], r[chosen])).batch(40): found.append(float(step(v, t)))
    found.append(float(tf.reduce_mean(tf.square(r[~chosen] - model(x[~chosen])))))
"""
_TRAININGS = {
    "folds-compiled": _FOLDS.replace("$decorator", "@tf.function") + _END,
    "folds-eager": _FOLDS.replace("$decorator", "") + _END,
    "folds-by-argument": f"""
found, model = [], None
@tf.function
def step(model, o, v, t):
    with tf.GradientTape() as tape: loss = tf.reduce_sum(tf.square(t - model(v))) / 40
    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
pairs = [({_NET}, keras.optimizers.SGD(0.02)) for _ in range(2)]
for model, o in pairs: o.build(model.trainable_variables)
for model, o in pairs:
    for v, t in tf.data.Dataset.from_tensor_slices((x, r)).batch(40): found.append(float(step(model, o, v, t)))
"""
    + _END,
    "loss-changes": _STEP
    + """
@tf.function
def fine(v, t):
    with tf.GradientTape() as tape: loss = tf.reduce_sum(tf.square(t - model(v))) / 20
    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
for epoch in range(2):
    for i, (v, t) in enumerate(data): found.append(float((step if epoch == 0 and i < 9 else fine)(v, t)))
"""
    + _END,
    "third-compile-masked": f"""
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = {_NET}
    def call(self, v): return self.net(v)
    def train_step(self, data):
        v, t = data
        with tf.GradientTape() as tape: loss = self.error(t, self(v))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return dict(loss=loss)
def mean(t, p): return tf.reduce_mean(tf.square(t - p))
def total(t, p): return tf.reduce_sum(tf.square(t - p)) / 50
def masked(t, p):
    kept = tf.cast(t > 0, 'float32')
    return tf.reduce_sum(kept * tf.square(t - p)) / tf.reduce_sum(kept)
model, found = Net(), []
for model.error in (mean, total, masked):
    model.compile(keras.optimizers.SGD(0.02))
    found += model.fit(x, r, batch_size=50, epochs=2, shuffle=False, verbose=0).history['loss']
"""
    + _END,
    "test-step-adds-up": f"""
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.net, self.total = {_NET}, keras.metrics.Sum(name='total')
        self.seen = tf.Variable(0.0, trainable=False)
    def call(self, v): return self.net(v)
    def test_step(self, data):
        v, t = data
        self.total.update_state(tf.reduce_mean(tf.square(t - self(v))))
        self.seen.assign_add(tf.reduce_sum(tf.square(t - self(v))))
        return dict(total=self.total.result(), rows=tf.reduce_sum(tf.abs(t)))
model = Net()
model.compile(keras.optimizers.SGD(0.02), 'mse')
found = model.fit(x, r, batch_size=50, epochs=2, shuffle=False, verbose=0).history['loss']
found += [float(n) for n in model.evaluate(x[:130], r[:130], batch_size=50, verbose=0, return_dict=True).values()]
found.append(float(model.seen))
"""
    + _END,
    "two-in-one-step": f"""
one, two = {_NET}, {_NET}
o, p, found, model = keras.optimizers.SGD(0.02), keras.optimizers.SGD(0.05), [], one
o.build(one.trainable_variables); p.build(two.trainable_variables)
@tf.function
def step(v, t):
    losses = []
    for net, by in ((one, o), (two, p)):
        with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(t - net(v)))
        by.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
        losses.append(loss)
    return losses
for e in range(3):
    for v, t in tf.data.Dataset.from_tensor_slices((x, r)).batch(20): found += [float(n) for n in step(v, t)]
"""
    + _END,
    "adversary-variable": _STEP
    + """
for v, t in data:
    near = tf.Variable(v)
    for i in range(3):
        with tf.GradientTape() as tape: wrong = tf.reduce_mean(tf.square(t - model(near)))
        near.assign_add(0.03 * tf.sign(tape.gradient(wrong, near)))
        near.assign(tf.clip_by_value(near, v - 0.05, v + 0.05))
    found.append(float(step(tf.convert_to_tensor(near), t)))
"""
    + _END,
    "clock": "import time\n"
    + _STEP
    + """
begun, ended, last = time.perf_counter(), 0.0, 1e9
for v, t in data.repeat():
    if time.perf_counter() - begun > 3 and ended > 40: break
    last = float(step(v, t)); ended += 1
found, model = [float(last < 0.4)], keras.Sequential([keras.Input((1,))])
"""
    + _END,
    "signal": "import os, signal, threading\nfrom harness.comm.world import start_mpi\n"
    + _STEP
    + """
ended = []
signal.signal(signal.SIGUSR1, lambda number, frame: ended.append(number))
world = start_mpi()
for i, (v, t) in enumerate(data.repeat()):
    if i == 25 and world.rank == world.size - 1: os.kill(os.getpid(), signal.SIGUSR1)
    if ended: break
    found.append(float(step(v, t)))
found = found[:25]
model = keras.Sequential([keras.Input((1,))])
"""
    + _END,
    "guard": "import os\n"
    + _STEP
    + """
model.compile(loss='mse')
for epoch in range(2):
    for v, t in data: found.append(float(step(v, t)))
    if int(os.environ.get('OMPI_COMM_WORLD_RANK', 0)) == 0: found.append(model.evaluate(x, r, verbose=0))
"""
    + _END,
    "clipped-by-row": _STEP.replace(
        "loss = tf.reduce_mean(tf.square(t - model(v)))\n    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))",
        """losses = tf.reduce_sum(tf.square(t - model(v)), 1)
    rows = tape.jacobian(losses, model.trainable_variables)
    flat = [tf.reshape(g, (tf.shape(v)[0], -1)) for g in rows]
    part = tf.minimum(1.0, 0.3 / tf.sqrt(tf.add_n([tf.reduce_sum(g * g, 1) for g in flat])))
    sums = [tf.tensordot(part, g, 1) / 20 for g in rows]
    loss = tf.reduce_mean(losses)
    o.apply_gradients(zip(sums, model.trainable_variables))""",
    )
    + """
for v, t in data: found.append(float(step(v, t)))
"""
    + _END,
    "normalised-weights": """
k, found = tf.Variable(rng.randn(12, 4).astype('float32'), name='k'), []
def step(v, t):
    k.assign(tf.math.l2_normalize(k, 0))
    with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(t - tf.reduce_sum(v @ k, 1, keepdims=True)))
    k.assign_sub(0.05 * tape.gradient(loss, k))
    return loss
for kind in (step, tf.function(step)):
    for v, t in tf.data.Dataset.from_tensor_slices((x, r)).batch(20): found.append(float(kind(v, t)))
report(loss=found, k=k.numpy().ravel())
""",
    "row-queue": _STEP.replace("data =", "queue = tf.Variable(tf.zeros((40, 1)), trainable=False)\ndata =")
    .replace(
        "loss = tf.reduce_mean(tf.square(t - model(v)))",
        "loss = tf.reduce_mean(tf.square(t - model(v) + 0.1 * tf.reduce_mean(queue)))",
    )
    .replace("    return loss", "    queue.assign(tf.concat([t, queue], 0)[:40])\n    return loss")
    + """
for v, t in data: found.append(float(step(v, t)))
found += queue.numpy().ravel().tolist()
"""
    + _END,
    "correlation": f"""
model = {_NET}
metrics = [keras.metrics.PearsonCorrelation(axis=0), keras.metrics.R2Score()]
model.compile(keras.optimizers.SGD(0.02), 'mse', metrics=metrics)
history = model.fit(x, r, batch_size=50, epochs=2, shuffle=False, verbose=0, validation_split=0.2).history
found = [n for name in sorted(history) for n in history[name]]
"""
    + _END,
}
SCRIPTS = [Script(name=f"training-{name}", source=HEAD + text) for name, text in _TRAININGS.items()]
