"""TensorFlow-1 graphs and sessions, in the way old scripts were written and in the way they were carried over."""

from tests.scripts.corpus import Script, fill

_SESSION = """
import json
import numpy as np
$imports
rng = np.random.RandomState(0)
x = rng.randn(240, 6).astype('float32')
y = (x[:, :1] > 0).astype('float32')
tf.set_random_seed(1)
X = tf.placeholder(tf.float32, [$rows, 6])
Y = tf.placeholder(tf.float32, [$rows, 1])
w, b = tf.get_variable('w', [6, 1], initializer=tf.zeros_initializer()), tf.get_variable('b', [1], initializer=tf.zeros_initializer())
logits = tf.matmul(X, w) + b
$model
loss = $loss
accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.cast(logits > 0, tf.float32), Y), tf.float32))
optimizer = tf.train.$optimizer
$train
out = []
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for epoch in range(3):
        for i in range(0, 240, 40):
            $run
        out.append(float(session.run(accuracy, {X: x$whole, Y: y$whole})))
    weights = session.run([w, b])
print('RESULT', json.dumps({'out': out, 'weights': [float(np.abs(v).sum()) for v in weights]}))
"""
_OLD = "import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()"
_CARRIED = "import tensorflow.compat.v1 as tf\ntf.disable_eager_execution()"
_CROSS = "tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=Y, logits=logits))"


def _session(name: str, refused: str = "", **parts: str) -> Script:
    filled = {
        "imports": _OLD,
        "rows": "None",
        "model": "",
        "loss": _CROSS,
        "optimizer": "GradientDescentOptimizer(0.1)",
        "train": "train = optimizer.minimize(loss)",
        "whole": "",
        "run": "_, l = session.run([train, loss], {X: x[i:i + 40], Y: y[i:i + 40]}); out.append(float(l))",
    }
    return Script(name=f"session-{name}", source=fill(_SESSION, **(filled | parts)), refused=refused)


SCRIPTS = [
    _session("old"),
    _session("carried", imports=_CARRIED),
    *(
        _session(f"optimizer-{o.split('Opt')[0]}", optimizer=o)
        # Adam's usual epsilon makes 1e-9, which is how far sums in another order are apart, a tenth of a step.
        for o in (
            "AdamOptimizer(0.01, epsilon=1e-4)",
            "MomentumOptimizer(0.05, 0.9)",
            "AdagradOptimizer(0.1)",
            "RMSPropOptimizer(0.01)",
            "FtrlOptimizer(0.1)",
        )
    ),
    _session(
        "clipped",
        train="pairs = optimizer.compute_gradients(loss)\ntrain = optimizer.apply_gradients([(tf.clip_by_value(g, -1.0, 1.0), v) for g, v in pairs])",
    ),
    _session(
        "clipped-tight",
        train="pairs = optimizer.compute_gradients(loss)\ntrain = optimizer.apply_gradients([(tf.clip_by_norm(g, 0.01), v) for g, v in pairs])",
    ),
    _session(
        "gradients-clipped",
        train="g, _ = tf.clip_by_global_norm(tf.gradients(loss, [w, b]), 0.05)\ntrain = optimizer.apply_gradients(zip(g, [w, b]))",
    ),
    _session(
        "gradients-clipped-carried",
        imports="import tensorflow as whole\ntf = whole.compat.v1\ntf.disable_eager_execution()",
        train="g, _ = tf.clip_by_global_norm(tf.gradients(loss, [w, b]), 0.05)\ntrain = optimizer.apply_gradients(zip(g, [w, b]))",
    ),
    _session(
        "gradients-sum",
        loss="0.02 * tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=Y, logits=logits))",
        train="g, _ = tf.clip_by_global_norm(tf.gradients(loss, [w, b]), 0.05)\ntrain = optimizer.apply_gradients(zip(g, [w, b]))",
    ),
    _session(
        "gradient-norm",
        train="norm = tf.linalg.global_norm(tf.gradients(loss, [w, b]))\ntrain = optimizer.minimize(loss)",
        run="_, l = session.run([train, norm], {X: x[i:i + 40], Y: y[i:i + 40]}); out.append(float(l))",
    ),
    _session(
        "two-losses",
        train="train = optimizer.minimize(loss)\nother = optimizer.minimize(tf.reduce_mean(tf.square(logits - Y)))",
        run="_, l = session.run([train, loss], {X: x[i:i + 40], Y: y[i:i + 40]}); out.append(float(l)); session.run(other, {X: x[i:i + 40], Y: y[i:i + 40]})",
    ),
    _session(
        "step-count",
        train="count = tf.train.get_or_create_global_step()\ntrain = optimizer.minimize(loss, global_step=count)",
    ),
    _session(
        "hidden",
        model="h = tf.tanh(tf.matmul(X, tf.get_variable('h', [6, 4], initializer=tf.constant_initializer(0.1))))\nlogits = logits + tf.reduce_sum(h, 1, keepdims=True)",
    ),
    _session(
        "dropout",
        model="h = tf.nn.dropout(tf.tanh(tf.matmul(X, tf.get_variable('h', [6, 8], initializer=tf.constant_initializer(0.1)))), rate=0.4)\nlogits = logits + tf.reduce_sum(h, 1, keepdims=True)",
    ),
    _session("sum", loss="0.02 * tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=Y, logits=logits))"),
    _session(
        "decay",
        optimizer="GradientDescentOptimizer(tf.train.exponential_decay(0.1, tf.train.get_or_create_global_step(), 5, 0.9))",
        train="train = optimizer.minimize(loss, global_step=tf.train.get_global_step())",
    ),
    _session(
        "dependencies",
        train="update = optimizer.minimize(loss)\nwith tf.control_dependencies([update]): train = tf.no_op()",
    ),
    _session("separate", run="session.run(train, feed_dict={X: x[i:i + 40], Y: y[i:i + 40]})"),
    _session("regularised", loss=_CROSS + " + 0.01 * tf.nn.l2_loss(w)"),
    _session(
        "saver",
        train="train = optimizer.minimize(loss)\nsaver = tf.train.Saver()",
        run="_, l = session.run([train, loss], {X: x[i:i + 40], Y: y[i:i + 40]}); out.append(float(l)); saver.save(session, './kept')",
    ),
    _session("fixed", rows="40", whole="[:40]"),
    _session(
        "normalised",
        model="m, v = tf.nn.moments(tf.matmul(X, w), [0])\nlogits = tf.nn.batch_normalization(tf.matmul(X, w), m, v, b, None, 1e-3)",
    ),
    _session(
        "unfed",
        whole="[:40]",
        model="logits = tf.matmul(tf.constant(x[:40]), w) + b",
        loss="tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.constant(y[:40]), logits=logits))",
        run="session.run(train)",
    ),
]
