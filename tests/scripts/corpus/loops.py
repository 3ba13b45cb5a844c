"""Hand-written loops with `GradientTape`: compiled, eager and nested; losses, clipping, metrics, several models."""

from tests.scripts.corpus import HEAD, Script, fill

_LOOP = (
    HEAD
    + """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
optimizer = $optimizer
data = tf.data.Dataset.from_tensor_slices((x, r)).batch(40)
$before
$decorator
def step(v, t):
    with tf.GradientTape() as tape:
        p = model(v, training=True)
        $loss
    gradients = tape.gradient(loss, model.trainable_variables)
    $between
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    $after
    return loss
losses, more = [], []
for epoch in range(3):
    for v, t in data:
        losses.append(float(step(v, t)))
    $epoch
report(losses=losses, more=more, weights=[float(np.abs(v).sum()) for v in model.get_weights()])
"""
)


def _loop(name: str, *, refused: str = "", rtol: float = 2e-3, **parts: str) -> list[Script]:
    """Return the loop with a compiled step, and with an eager one unless the decorator is given."""
    filled = {
        "optimizer": "keras.optimizers.SGD(0.02)",
        "before": "",
        "loss": "loss = tf.reduce_mean(tf.square(t - p))",
        "between": "pass",
        "after": "pass",
        "epoch": "pass",
    } | parts
    kinds = [("", filled["decorator"])] if "decorator" in filled else [("-compiled", "@tf.function"), ("-eager", "")]
    return [
        Script(
            name=f"loop-{name}{kind}",
            source=fill(_LOOP, **(filled | {"decorator": decorator})),
            refused=refused,
            rtol=rtol,
        )
        for kind, decorator in kinds
    ]


_TRAIN = "train_loss, train_error = keras.metrics.Mean(), keras.metrics.MeanAbsoluteError()"
SCRIPTS = [
    *_loop("mean"),
    *_loop("object", before="mse = keras.losses.MeanSquaredError()", loss="loss = mse(t, p)"),
    *_loop("sum-object", before="mse = keras.losses.MeanSquaredError(reduction='sum')", loss="loss = 0.02 * mse(t, p)"),
    *_loop(
        "none-mean",
        before="mse = keras.losses.MeanSquaredError(reduction='none')",
        loss="loss = tf.reduce_mean(mse(t, p))",
    ),
    *_loop(
        "regularised",
        loss="loss = tf.reduce_mean(tf.square(t - p)) + 0.01 * tf.add_n([tf.nn.l2_loss(k) for k in model.trainable_variables])",
    ),
    *_loop("global-clip", between="gradients, _ = tf.clip_by_global_norm(gradients, 0.1)"),
    *_loop("each-clip", between="gradients = [tf.clip_by_norm(g, 0.05) for g in gradients]"),
    *_loop("value-clip", between="gradients = [tf.clip_by_value(g, -0.01, 0.01) for g in gradients]"),
    *_loop("sign", between="gradients = [tf.sign(g) for g in gradients]", optimizer="keras.optimizers.SGD(0.002)"),
    *_loop("adam", optimizer="keras.optimizers.Adam(0.01)"),
    *_loop("rmsprop", optimizer="keras.optimizers.RMSprop(0.01)"),
    *_loop(
        "metrics",
        before=_TRAIN,
        after="train_loss(loss); train_error(t, p)",
        epoch="more += [float(train_loss.result()), float(train_error.result())]; train_loss.reset_state(); train_error.reset_state()",
    ),
    *_loop("weights", between="gradients = [g * 0.5 for g in gradients]"),
    *_loop(
        "average",
        before="average = [tf.Variable(k) for k in model.get_weights()]",
        after="[a.assign(0.9 * a + 0.1 * k) for a, k in zip(average, model.trainable_variables)]",
        epoch="more += [float(tf.reduce_sum(tf.abs(a))) for a in average]",
    ),
    *_loop(
        "accumulated",
        before="held = [tf.Variable(tf.zeros_like(k), trainable=False) for k in model.trainable_variables]",
        between="[h.assign(0.5 * h + g) for h, g in zip(held, gradients)]; gradients = [tf.identity(h) for h in held]",
    ),
    *_loop(
        "ascent",
        between="""norm = tf.linalg.global_norm(gradients)
    moves = [0.05 * g / (norm + 1e-12) for g in gradients]
    [k.assign_add(e) for k, e in zip(model.trainable_variables, moves)]
    with tf.GradientTape() as second:
        again = tf.reduce_mean(tf.square(t - model(v, training=True)))
    gradients = second.gradient(again, model.trainable_variables)
    [k.assign_sub(e) for k, e in zip(model.trainable_variables, moves)]""",
    ),
    *_loop("second-pass", epoch="more.append(float(np.mean([np.abs(t - model(v)).mean() for v, t in data])))"),
    *_loop("evaluate", before="model.compile(loss='mse')", epoch="more.append(model.evaluate(x, r, verbose=0))"),
    *_loop("predict", epoch="more.append(float(np.abs(model.predict(x, verbose=0) - r).mean()))"),
    *_loop(
        "by-hand-metric",
        before="m = keras.metrics.MeanAbsoluteError(); n = keras.metrics.TruePositives()",
        epoch="m.update_state(r, model(x)); n.update_state(r > 0, tf.sigmoid(model(x))); more += [float(m.result()), float(n.result())]",
    ),
    *_loop(
        "nested",
        decorator="@tf.function",
        before="""@tf.function
def apply(gradients): optimizer.apply_gradients(zip(gradients, model.trainable_variables))
optimizer.build(model.trainable_variables)""",
        between="apply(gradients); gradients = [0.0 * g for g in gradients]",
    ),
    *_loop(
        "cond",
        decorator="@tf.function",
        between="gradients = tf.cond(loss > 0.1, lambda: gradients, lambda: [0.5 * g for g in gradients])",
    ),
    *_loop(
        "signature", decorator="@tf.function(input_signature=[tf.TensorSpec((None, 12)), tf.TensorSpec((None, 1))])"
    ),
    *_loop(
        "fixed-signature",
        decorator="@tf.function(input_signature=[tf.TensorSpec((40, 12)), tf.TensorSpec((40, 1))])",
        before="data = tf.data.Dataset.from_tensor_slices((x, r)).batch(40, drop_remainder=True)",
    ),
    *_loop(
        "saved",
        before="import os\ncheckpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)\nmanager = tf.train.CheckpointManager(checkpoint, 'kept', max_to_keep=2)",
        epoch="manager.save(); checkpoint.restore(manager.latest_checkpoint); more.append(len(manager.checkpoints))",
    ),
    *_loop("weights-file", epoch="model.save_weights('m.weights.h5'); model.load_weights('m.weights.h5')"),
    *_loop(
        "model-file", epoch="model.save('m.keras'); more.append(float(keras.models.load_model('m.keras')(x)[0, 0]))"
    ),
    *_loop("schedule", optimizer="keras.optimizers.Adam(keras.optimizers.schedules.PolynomialDecay(0.02, 20))"),
    *_loop(
        "tf1-optimizer",
        optimizer="None",
        before="""
class Old(tf.compat.v1.train.MomentumOptimizer):  # which takes TensorFlow's variables and not Keras's
    def apply_gradients(self, pairs): return super().apply_gradients([(g, k.value) for g, k in pairs])
optimizer = Old(0.02, 0.9)
""",
    ),
    *_loop(
        "numpy-loss",
        decorator="",
        loss="loss = tf.reduce_mean(tf.square(t - p)); more.append(float(0.0 * tf.reduce_sum(p)))",
    ),
]
_WHOLE = {
    "next": """
it = iter(data.repeat())
for i in range(20):
    v, t = next(it)
    losses.append(float(step(v, t)))
""",
    "stop": """
for epoch in range(2):
    it = iter(data)
    while True:
        try:
            v, t = next(it)
        except StopIteration:
            break
        losses.append(float(step(v, t)))
""",
    "validation-next": """
it, other = iter(data.repeat()), iter(data.repeat())
for i in range(20):
    v, t = next(it)
    losses.append(float(step(v, t)))
    if i % 4 == 0:
        v, t = next(other)
        more.append(float(tf.reduce_mean(tf.abs(model(v) - t))))
""",
    "validation-loop": """
held = tf.data.Dataset.from_tensor_slices((x[:90], r[:90])).batch(40)
for epoch in range(3):
    for v, t in data: losses.append(float(step(v, t)))
    total = 0.0
    for v, t in held: total += float(tf.reduce_sum(tf.abs(model(v) - t)))
    more.append(total / 90)
""",
    "second-pass-after": """
for v, t in data: losses.append(float(step(v, t)))
more.append(float(np.mean(np.concatenate([np.abs(t - model(v)) for v, t in data]))))
""",
    "function": """
def run(d, training):
    total = 0.0
    for v, t in d: total += float(step(v, t)) if training else float(tf.reduce_mean(tf.square(t - model(v))))
    return total
for epoch in range(2):
    more.append(run(data, True))
    more.append(run(data, False))
""",
    "phases": """
held = tf.data.Dataset.from_tensor_slices((x[:90], r[:90])).batch(40)
for epoch in range(2):
    for phase, d in (('train', data), ('validate', held)):
        for v, t in d: more.append(float(step(v, t)) if phase == 'train' else float(tf.reduce_mean(tf.square(t - model(v)))))
""",
    "same-lines": (
        """
for training in (True, False):
    for v, t in data: more.append(float(step(v, t)) if training else float(tf.reduce_mean(tf.square(t - model(v)))))
""",
        "evaluate in a loop of its own",
    ),
    "not-in-order": """
rows = tf.data.Dataset.from_tensor_slices((x, r)).map(lambda v, t: (v * 1.5, t), num_parallel_calls=2, deterministic=False)
for v, t in rows.interleave(lambda v, t: tf.data.Dataset.from_tensors((v, t)), num_parallel_calls=2, deterministic=False).batch(40): losses.append(float(step(v, t)))
""",
    "python-zip": """
for v, t in zip(tf.data.Dataset.from_tensor_slices(x).batch(40), tf.data.Dataset.from_tensor_slices(r).batch(40)): losses.append(float(step(v, t)))
""",
    "validation-metric": """
held, error = tf.data.Dataset.from_tensor_slices((x[:90], r[:90])).batch(40), keras.metrics.MeanAbsoluteError()
@tf.function
def test(v, t): error.update_state(t, model(v, training=False))
for epoch in range(3):
    for v, t in data: losses.append(float(step(v, t)))
    for v, t in held: test(v, t)
    more.append(float(error.result())); error.reset_state()
""",
    "get-next": """
it = iter(data.repeat())
for i in range(20):
    v, t = it.get_next()
    losses.append(float(step(v, t)))
""",
    "numpy-iterator": """
for v, t in data.as_numpy_iterator(): losses.append(float(step(tf.constant(v), tf.constant(t))))
""",
    "list": """
for epoch in range(3):
    for v, t in list(data): losses.append(float(step(v, t)))
""",
    "on-batch": """
model.compile(optimizer=keras.optimizers.SGD(0.02), loss='mse')
for v, t in data.unbatch().batch(60): losses.append(float(np.ravel(model.train_on_batch(v, t))[0]))
""",
    "memory": """
rows = sum(len(v) for v, t in data)
seen = np.concatenate([t for v, t in data])
for v, t in data: losses.append(float(step(v, t)))
more += [rows, float(seen.sum())]
""",
    "enumerate": """
for i, (v, t) in enumerate(data):
    losses.append(float(step(v, t)))
    if i == 5: break
""",
    "dataset-enumerate": """
for i, (v, t) in data.enumerate():
    losses.append(float(step(v, t))); more.append(int(i))
""",
    "take": """
for v, t in data.take(3): losses.append(float(step(v, t)))
for v, t in data.skip(3): losses.append(float(step(v, t)))
""",
    "dicts": """
for row in tf.data.Dataset.from_tensor_slices({'v': x, 't': r}).batch(40): losses.append(float(step(row['v'], row['t'])))
""",
    "shuffled": """
for epoch in range(2):
    for v, t in tf.data.Dataset.from_tensor_slices((x, r)).shuffle(300, seed=5).batch(40): losses.append(float(step(v, t)))
""",
    "generator": """
def rows():
    for i in range(300): yield x[i], r[i]
for v, t in tf.data.Dataset.from_generator(rows, output_signature=(tf.TensorSpec((12,)), tf.TensorSpec((1,)))).batch(40): losses.append(float(step(v, t)))
""",
    "collected": """
for epoch in range(3):
    kept = [step(v, t) for v, t in data]
    losses.append(float(tf.reduce_mean(kept)))
""",
    "zip": """
for v, t in tf.data.Dataset.zip((tf.data.Dataset.from_tensor_slices(x), tf.data.Dataset.from_tensor_slices(r))).batch(40): losses.append(float(step(v, t)))
""",
    "arrays": "for i in range(0, 300, 20): losses.append(float(step(x[i:i + 20], r[i:i + 20])))",
    "arrays-uneven": """
for epoch in range(3):
    order = np.random.RandomState(epoch).permutation(300)
    for i in range(0, 300, 35): losses.append(float(step(x[order[i:i + 35]], t=tf.constant(r[order[i:i + 35]]))))
    for v, t in data: more.append(float(tf.reduce_mean(tf.square(t - model(v)))))
""",
    "arrays-rows-masked": """
@tf.function
def masked(v, t):
    with tf.GradientTape() as tape:
        kept = tf.cast(t > 0.2, tf.float32)
        loss = tf.reduce_sum(kept * tf.square(t - model(v))) / tf.reduce_sum(kept)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
for i in range(0, 300, 30): losses.append(float(masked(x[i:i + 30], r[i:i + 30])))
""",
    "arrays-then-data": """
for i in range(0, 300, 30): losses.append(float(step(x[i:i + 30], r[i:i + 30])))
for v, t in data: losses.append(float(step(v, t)))
for i in range(0, 300, 30): losses.append(float(step(x[i:i + 30], r[i:i + 30])))
""",
    "single-rows": "for v, t in tf.data.Dataset.from_tensor_slices((x, r)): losses.append(float(step(v[None], t[None])))",
    "inside": "@tf.function\ndef run(d):\n    for v, t in d: step(v, t)\nrun(data)",
    "iterator-inside": "@tf.function\ndef one(it):\n    v, t = next(it)\n    return step(v, t)\nit = iter(data)\nfor i in range(6): losses.append(float(one(it)))",
}
_OWN = (
    HEAD
    + """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.02)
data = tf.data.Dataset.from_tensor_slices((x, r)).batch(40)
@tf.function
def step(v, t):
    with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(t - model(v)))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
losses, more = [], []
$body
report(losses=losses, more=more, weights=[float(np.abs(v).sum()) for v in model.get_weights()])
"""
)
for _name, _body in _WHOLE.items():
    _text, _refused = _body if isinstance(_body, tuple) else (_body, "")
    _rtol = 0.3 if _name == "not-in-order" else 2e-3  # alone it has another order each time
    SCRIPTS.append(Script(name=f"take-{_name}", source=fill(_OWN, body=_text), refused=_refused, rtol=_rtol))
_FREE = {
    "gan": """
g = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(12)])
d = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
og, od = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)
og.build(g.trainable_variables); od.build(d.trainable_variables)
bce = keras.losses.BinaryCrossentropy(from_logits=True)
@tf.function
def step(v):
    z = v[:, :4]
    with tf.GradientTape() as a, tf.GradientTape() as c:
        fake, real = d(g(z)), d(v)
        lg = bce(tf.ones_like(fake), fake)
        ld = bce(tf.ones_like(real), real) + bce(tf.zeros_like(fake), fake)
    og.apply_gradients(zip(a.gradient(lg, g.trainable_variables), g.trainable_variables))
    od.apply_gradients(zip(c.gradient(ld, d.trainable_variables), d.trainable_variables))
    return lg, ld
out = [step(v) for e in range(2) for v in tf.data.Dataset.from_tensor_slices(x).batch(50)]
report(generator=[float(a) for a, c in out], critic=[float(c) for a, c in out])
""",
    "penalty": """
d = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
o = keras.optimizers.SGD(0.02)
@tf.function
def step(v):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(v); p = d(v)
        slope = tf.norm(inner.gradient(p, v), axis=1)
        loss = tf.reduce_mean(p) + tf.reduce_mean(tf.square(slope - 1))
    o.apply_gradients(zip(outer.gradient(loss, d.trainable_variables), d.trainable_variables))
    return loss
report(losses=[float(step(v)) for e in range(2) for v in tf.data.Dataset.from_tensor_slices(x).batch(50)])
""",
    "second-order": """
k = tf.Variable(0.1 * np.ones((12, 1), 'float32'))
o = keras.optimizers.SGD(0.02)
@tf.function
def step(v, t):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner: loss = tf.reduce_mean(tf.square(v @ k - t))
        fast = k - 0.1 * inner.gradient(loss, k)
        meta = tf.reduce_mean(tf.square(v @ fast - t))
    o.apply_gradients([(outer.gradient(meta, k), k)])
    return meta
report(losses=[float(step(v, t)) for e in range(3) for v, t in tf.data.Dataset.from_tensor_slices((x, r)).batch(50)])
""",
    "by-hand-descent": """
k, q = tf.Variable(np.zeros((12, 1), 'float32')), tf.Variable([0.0])
losses = []
for e in range(3):
    for v, t in tf.data.Dataset.from_tensor_slices((x, r)).batch(50):
        with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(v @ k + q - t))
        dk, dq = tape.gradient(loss, [k, q])
        k.assign_sub(0.05 * dk); q.assign_sub(0.05 * dq)
report(k=k.numpy().ravel(), q=q.numpy())
""",
    "embedding": """
table, out = keras.layers.Embedding(40, 6), keras.layers.Dense(1)
o = keras.optimizers.RMSprop(0.02)
words = rng.randint(0, 40, (300, 3))
@tf.function
def step(v, t):
    with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(out(tf.reduce_mean(table(v), 1)) - t))
    k = table.trainable_variables + out.trainable_variables
    o.apply_gradients(zip(tape.gradient(loss, k), k))
    return loss
table(words[:2]); out(np.zeros((1, 6), 'float32')); o.build(table.trainable_variables + out.trainable_variables)
losses = [float(step(v, t)) for e in range(3) for v, t in tf.data.Dataset.from_tensor_slices((words, r)).batch(50)]
report(losses=losses, table=float(np.abs(table.get_weights()[0]).sum()))
""",
    "count-compiled": """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(3)])
o = keras.optimizers.SGD(0.05)
@tf.function
def step(v, t):
    with tf.GradientTape() as tape:
        p = model(v); loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(t, p))
    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss, tf.reduce_sum(tf.cast(tf.argmax(p, 1, tf.int32) == t, tf.float32))
right = []
for e in range(3):
    hits = 0.0
    for v, t in tf.data.Dataset.from_tensor_slices((x, c)).batch(50): hits += float(step(v, t)[1])
    right.append(hits / len(x))
report(accuracy=right)
""",
    "count-eager": """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(3)])
o = keras.optimizers.SGD(0.05)
@tf.function
def step(v, t):
    with tf.GradientTape() as tape:
        p = model(v); loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(t, p))
    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return p
right = []
for e in range(3):
    hits = 0.0
    for v, t in tf.data.Dataset.from_tensor_slices((x, c)).batch(50): hits += float(np.sum(np.argmax(step(v, t), 1) == t.numpy()))
    right.append(hits / len(x))
report(accuracy=right)
""",
    "numbers-eager": """
import os
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(3)])
o = keras.optimizers.SGD(0.05)
hits, losses, shown, ends, smallest, steps = 0.0, [], [], [], 9.0, 0
for e in range(4):
    total = 0.0
    for i, (v, t) in enumerate(tf.data.Dataset.from_tensor_slices((x, c)).batch(60)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(t, model(v)))
        o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        found = tf.cast(tf.argmax(model(v), 1, tf.int32) == t, tf.float32)
        hits += float(tf.reduce_sum(found)); losses.append(loss.numpy()); steps += 1
        if e > 1: total += loss
        if i % 3 == 2: shown.append(f"{tf.reduce_mean(found):.4f} {loss:.6f}")
        if e == 3 and loss < smallest: smallest = float(loss)
    if e > 1: ends.append(float(total))
with open('losses.bin', 'wb') as f: f.write(np.float32(losses).tobytes())
assert os.path.exists('losses.bin') and os.path.getsize('losses.bin') == 4 * steps
report(losses=losses, hits=hits, ends=ends, shown=[float(n) for line in shown for n in line.split()])
""",
    "own-statistics": """
class Centre(keras.layers.Layer):
    def build(self, shape): self.middle = self.add_weight(shape=(shape[-1],), initializer='zeros', trainable=False)
    def call(self, v, training=False):
        if training: self.middle.assign(0.9 * self.middle + 0.1 * tf.reduce_mean(v, 0))
        return v - self.middle
model = keras.Sequential([keras.Input((12,)), Centre(), keras.layers.Dense(1)])
o = keras.optimizers.SGD(0.02)
@tf.function
def step(v, t):
    with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(t - model(v, training=True)))
    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
losses = [float(step(v, t)) for e in range(2) for v, t in tf.data.Dataset.from_tensor_slices((x + 3, r)).batch(50)]
report(losses=losses, middle=model.layers[0].middle.numpy())
""",
    "hidden-state": """
cell, out = keras.layers.GRUCell(5), keras.layers.Dense(1)
o = keras.optimizers.SGD(0.02)
series = rng.randn(320, 4, 3).astype('float32'); target = series[:, -1, :1]
def step(v, t, h):
    with tf.GradientTape() as tape:
        for i in range(4): _, (h,) = cell(v[:, i], [h])
        loss = tf.reduce_mean(tf.square(out(h) - t))
    k = cell.trainable_variables + out.trainable_variables
    o.apply_gradients(zip(tape.gradient(loss, k), k))
    return loss
report(losses=[float(step(v, t, tf.zeros((40, 5)))) for v, t in tf.data.Dataset.from_tensor_slices((series, target)).batch(40)])
""",
    "time-major": """
cell, out = keras.layers.GRUCell(5), keras.layers.Dense(1)
o = keras.optimizers.SGD(0.02)
series = rng.randn(320, 4, 3).astype('float32'); target = series[:, -1, :1]
data = tf.data.Dataset.from_tensor_slices((series, target)).batch(40).map(lambda v, t: (tf.transpose(v, (1, 0, 2)), t))
losses = []
for v, t in data:
    with tf.GradientTape() as tape:
        h = tf.zeros((tf.shape(t)[0], 5))
        for i in range(4): _, (h,) = cell(v[i], [h])
        loss = tf.reduce_mean(tf.square(out(h) - t))
    k = cell.trainable_variables + out.trainable_variables
    o.apply_gradients(zip(tape.gradient(loss, k), k)); losses.append(float(loss))
report(losses=losses)
""",
    "carried-state": """
cell, out = keras.layers.GRUCell(5), keras.layers.Dense(1)
o = keras.optimizers.SGD(0.02)
series = rng.randn(320, 4, 3).astype('float32'); target = series[:, -1, :1]
h, losses = tf.zeros((40, 5)), []
for v, t in tf.data.Dataset.from_tensor_slices((series, target)).batch(40):
    with tf.GradientTape() as tape:
        for i in range(4): _, (h,) = cell(v[:, i], [h])
        loss = tf.reduce_mean(tf.square(out(h) - t))
    k = cell.trainable_variables + out.trainable_variables
    o.apply_gradients(zip(tape.gradient(loss, k), k)); losses.append(float(loss))
report(losses=losses)
""",
    "carried-layer": """
model = keras.Sequential([keras.Input(batch_shape=(40, 4, 3)), keras.layers.LSTM(5, stateful=True), keras.layers.Dense(1)])
o = keras.optimizers.SGD(0.02)
series = rng.randn(320, 4, 3).astype('float32'); target = series[:, -1, :1]
losses = []
for v, t in tf.data.Dataset.from_tensor_slices((series, target)).batch(40):
    with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(model(v, training=True) - t))
    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables)); losses.append(float(loss))
report(losses=losses)
""",
    "time-major-whole": """
cell, out = keras.layers.GRUCell(5), keras.layers.Dense(1)
o = keras.optimizers.SGD(0.02)
series = rng.randn(320, 4, 3).astype('float32')
data = tf.data.Dataset.from_tensor_slices((series, series[:, :, :1])).batch(40).map(lambda v, t: (tf.transpose(v, (1, 0, 2)), tf.transpose(t, (1, 0, 2))))
losses = []
for v, t in data:
    with tf.GradientTape() as tape:
        h, wrong = tf.zeros((v.shape[1], 5)), []
        for i in range(v.shape[0]):
            _, (h,) = cell(v[i], [h]); wrong.append(tf.reduce_mean(tf.square(out(h) - t[i])))
        loss = tf.add_n(wrong) / len(wrong)
    k = cell.trainable_variables + out.trainable_variables
    o.apply_gradients(zip(tape.gradient(loss, k), k)); losses.append(float(loss))
report(losses=losses)
""",
    "graph-clipped": """
k = tf.Variable(0.1 * np.ones((12, 1), 'float32'))
o = tf.compat.v1.train.GradientDescentOptimizer(0.1)
@tf.function
def step(v, t):
    loss = tf.reduce_mean(tf.square(v @ k - t))
    g, _ = tf.clip_by_global_norm(tf.gradients(loss, [k]), 0.05)
    o.apply_gradients(zip(g, [k]))
    return loss
losses = [float(step(v, t)) for e in range(3) for v, t in tf.data.Dataset.from_tensor_slices((x, r)).batch(50)]
report(losses=losses, k=k.numpy().ravel())
""",
    "on-batch": """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.02), loss='mse')
losses = [float(np.ravel(model.train_on_batch(x[i:i + 60], r[i:i + 60]))[0]) for e in range(2) for i in range(0, 300, 60)]
report(losses=losses, weights=[float(np.abs(v).sum()) for v in model.get_weights()])
""",
    "on-batch-mixed": """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
model.compile(optimizer='sgd', loss=keras.losses.MeanSquaredError(reduction='sum'), metrics=['mae'])
report(losses=[[float(v) for v in model.train_on_batch(x[:n], r[:n] * 0.1)] for n in (32, 32, 31, 16, 32, 8, 33)])
""",
    "on-batch-late": """
model = keras.Sequential([keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
model.compile(optimizer='sgd', loss='mse')
report(losses=[float(np.ravel(model.train_on_batch(x[i:i + 30], r[i:i + 30]))[0]) for i in range(0, 300, 30)])
""",
    "on-batch-odd": """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1)])
model.compile(optimizer='sgd', loss='mse')
report(losses=[float(np.ravel(model.train_on_batch(x[i:i + 31], r[i:i + 31]))[0]) for i in range(0, 248, 31)])
""",
    "scaled": """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
o = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.02))
o.build(model.trainable_variables)
@tf.function
def step(v, t):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(t - model(v))); scaled = o.scale_loss(loss)
    o.apply_gradients(zip(tape.gradient(scaled, model.trainable_variables), model.trainable_variables))
    return loss
report(losses=[float(step(v, t)) for e in range(2) for v, t in tf.data.Dataset.from_tensor_slices((x, r)).batch(50)])
""",
    "normalised": """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
o = keras.optimizers.SGD(0.02)
@tf.function
def step(v, t):
    with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(t - model(v, training=True)))
    o.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
report(losses=[float(step(v, t)) for e in range(2) for v, t in tf.data.Dataset.from_tensor_slices((x, r)).batch(50)], weights=[float(np.abs(v).sum()) for v in model.get_weights()])
""",
    "nothing": "report(mean=float(tf.reduce_mean(x)))\n",
}
_REFUSED = {
    "graph-clipped": "tf.gradients inside a tf.function",
    "hidden-state": "another number of rows",
    "carried-state": "another number of rows",
    "carried-layer": "another number of rows",
    "nothing": "made no optimizer step",
}
SCRIPTS += [
    Script(
        name=f"free-{name}",
        source=HEAD + body,
        refused=_REFUSED.get(name, ""),
    )
    for name, body in _FREE.items()
]
