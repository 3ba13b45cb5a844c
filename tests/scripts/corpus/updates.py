"""What scripts do between gradients and weights: clipping in an optimizer of their own, updates without an optimizer."""

from tests.scripts.corpus import HEAD, Script, fill
from tests.scripts.corpus.fit import _fit as fit
from tests.scripts.corpus.sessions import _CARRIED
from tests.scripts.corpus.sessions import _session as session

_OLD = """
k, q = tf.Variable(np.zeros((12, 1), 'float32')), tf.Variable([0.0])
o = tf.compat.v1.train.$optimizer
$decorator
def step(v, t):
    loss = $loss
    pairs = o.compute_gradients(loss, [k, q])
    gradients, _ = tf.clip_by_global_norm([g for g, _ in pairs], 0.2)
    $update
for epoch in range(3):
    for v, t in tf.data.Dataset.from_tensor_slices((x, r)).batch(40): step(v, t)
report(k=k.numpy().ravel(), q=q.numpy())
"""
_APPLY = "o.apply_gradients(zip(gradients, [k, q]))"
_RAW = "k.assign_sub(0.05 * gradients[0]); q.assign_sub(0.05 * gradients[1])"
_MEAN = "tf.reduce_mean(tf.square(v @ k + q - t))"
_STEPS = {
    "apply-eager": ("", f"lambda: {_MEAN}", _APPLY),
    "apply-compiled": ("@tf.function", f"lambda: {_MEAN}", _APPLY),
    "apply-tensor": ("@tf.function", _MEAN, _APPLY),
    "raw-eager": ("", f"lambda: {_MEAN}", _RAW),
    "raw-compiled": ("@tf.function", f"lambda: {_MEAN}", _RAW),
    "raw-tensor": ("@tf.function", _MEAN, _RAW),
    "raw-sum": ("@tf.function", f"lambda: 0.02 * {_MEAN.replace('mean', 'sum')}", _RAW),
}
_CLIPPED = """class Clipped(keras.optimizers.SGD):
    def apply$ending(self, $given, *args, **kwargs):
        return super().apply$ending([$clip for $each in $given], *args, **kwargs)"""
_KERAS = {
    "apply": {"ending": "", "given": "grads", "each": "g", "clip": "tf.clip_by_norm(g, 0.02)"},
    "apply-gradients": {
        "ending": "_gradients",
        "given": "pairs",
        "each": "g, v",
        "clip": "(tf.clip_by_norm(g, 0.02), v)",
    },
}
_PAIRS = "pairs = optimizer.compute_gradients(loss)\n"
_SESSIONS = {
    "raw": _PAIRS + "train = [v.assign_sub(0.1 * g) for g, v in pairs]",
    "raw-clipped": _PAIRS
    + "g, _ = tf.clip_by_global_norm([g for g, _ in pairs], 0.05)\ntrain = tf.group(tf.assign(w, w - g[0]), tf.assign(b, b - g[1]))",
    "raw-gradients": "train = [v.assign_sub(0.1 * g) for g, v in zip(tf.gradients(loss, [w, b]), [w, b])]",
    "own-optimizer": """class Clipped(tf.train.MomentumOptimizer):
    def apply_gradients(self, pairs, *args, **kwargs):
        return super().apply_gradients([(tf.clip_by_norm(g, 0.01), v) for g, v in pairs], *args, **kwargs)
train = Clipped(0.1, 0.9).minimize(loss)""",
    "accumulated": _PAIRS
    + """held = [tf.Variable(tf.zeros_like(v), trainable=False) for _, v in pairs]
keep = [h.assign(0.5 * h + g) for h, (g, _) in zip(held, pairs)]
train = optimizer.apply_gradients([(k, v) for k, (_, v) in zip(keep, pairs)])""",
}
# Keras 2 as far as a script that trains needs it: the package need not be there.
_KERAS_2 = """
import importlib.abc, importlib.util, sys
class Two(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None): return importlib.util.spec_from_loader(name, self) if name == 'tf_keras' else None
    def exec_module(self, module):
        class Optimizer:
            def apply_gradients(self, pairs): [v.assign_sub(0.1 * g) for g, v in pairs]
        module.Model = type('Model', (), {})
        module.optimizers = type('optimizers', (), {'Optimizer': Optimizer, 'legacy': type('legacy', (), {'Optimizer': type('Optimizer', (), {})})})
sys.meta_path.append(Two())
import tf_keras
k = tf.Variable([1.0])
for v in tf.data.Dataset.from_tensor_slices(x).batch(50):
    with tf.GradientTape() as tape: loss = tf.reduce_mean(v) * k
    tf_keras.optimizers.Optimizer().apply_gradients([(tape.gradient(loss, k), k)])
report(k=k.numpy())
"""
_CALLABLE = """def f(): return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=Y, logits=tf.matmul(X, w) + b))
pairs = optimizer.compute_gradients(f, [w, b])
train = optimizer.apply_gradients([(tf.clip_by_norm(g, 0.01), v) for g, v in pairs])"""
SCRIPTS = [
    Script(name="update-keras-2", source=HEAD + _KERAS_2, refused="trains with Keras 2"),
    *(
        Script(
            name=f"update-{name}",
            refused="compute_gradients of a tensor" * (loss[0] != "l"),
            source=HEAD
            + fill(_OLD, optimizer="MomentumOptimizer(0.05, 0.9)", decorator=decorator, loss=loss, update=update),
        )
        for name, (decorator, loss, update) in _STEPS.items()
    ),
    *(fit(f"own-{name}", before=fill(_CLIPPED, **parts), optimizer="Clipped(0.5)") for name, parts in _KERAS.items()),
    *(session(name, train=train) for name, train in _SESSIONS.items()),
    session("callable", imports=_CARRIED, train=_CALLABLE),
]
