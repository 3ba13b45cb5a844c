"""What catches scripts on several ranks: sets, seeds, clocks, files."""

from tests.scripts.corpus import HEAD, Script

_FIT = """
model = keras.Sequential([keras.Input((VIEW.shape[1],)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.02), loss='mse', metrics=['mae'])
history = model.fit(VIEW, r, batch_size=32, epochs=2, shuffle=False, verbose=0)
report(loss=history.history['loss'])
"""
_TRAPS = {
    "set-vocabulary": (
        "words = [f'w{i % 23}' for i in range(300)]\nindex = {word: i for i, word in enumerate(set(words))}\nVIEW = np.eye(23, dtype='float32')[[index[word] for word in words]]\nreport(order=[0 * index['w3']])\n"
        + _FIT,
        0.3,
    ),
    "time-seed": (
        "import time\nnp.random.seed(int(time.time() * 1e6) % 2**31)\nVIEW = (x + 0 * np.random.randn(300, 12)).astype('float32')\n"
        + _FIT,
        2e-3,
    ),
    "unseeded": (
        "VIEW = (x + 0.01 * np.random.default_rng().standard_normal((300, 12))).astype('float32')\n" + _FIT,
        0.1,
    ),
    "pid-seed": (
        "import os, random\nrandom.seed(os.getpid())\norder = list(range(300)); random.shuffle(order)\nkeras.utils.set_random_seed(2)\nVIEW, r = x[order], r[order]\n"
        + _FIT.replace("batch_size=32", "batch_size=300"),
        2e-3,
    ),
    "any-order": (
        "import os, time\nranks = 'OMPI_COMM_WORLD_SIZE' in os.environ\ndef wait(v):\n    if ranks: time.sleep(0.05 * (int(v[0] * 1e4) * os.getpid() % 7 == 0))\n    return v\n"
        "def slowly(v, t): return tf.ensure_shape(tf.py_function(wait, [v], tf.float32), (12,)), t\n"
        "VIEW = x\n"
        + _FIT.replace(
            "VIEW, r, batch_size=32,",
            "tf.data.Dataset.from_tensor_slices((x, r)).map(slowly, 4, deterministic=False).prefetch(4).batch(32),",
        ).replace(" shuffle=False,", ""),
        1e-2,
    ),
    "state-unseeded": ("VIEW = (x @ np.random.RandomState().randn(12, 12) / 3).astype('float32')\n" + _FIT, 2e-3),
    "python-unseeded": (
        "import random\nown = random.Random()\norder = list(range(300)); own.shuffle(order)\nVIEW, r = x[order], r[order]\n"
        + _FIT,
        2e-3,
    ),
    "generator-unseeded": (
        "VIEW = (x @ np.random.Generator(np.random.PCG64()).standard_normal((12, 12)) / 3).astype('float32')\n"
        + _FIT.replace("VIEW, r, batch_size=32", "tf.data.Dataset.from_tensor_slices((VIEW, r)).batch(32)").replace(
            "shuffle=False, ", ""
        ),
        2e-3,
    ),
    "pandas": ("import pandas as pd\nVIEW = pd.DataFrame(x)\n" + _FIT, 2e-3),
    "csv": (
        "import pandas as pd\npd.DataFrame(x).to_csv('x.csv', index=False)\nVIEW = pd.read_csv('x.csv').to_numpy('float32')\n"
        + _FIT,
        2e-3,
    ),
    "timeseries": (
        "model = keras.Sequential([keras.Input((3, 12)), keras.layers.Flatten(), keras.layers.Dense(1)])\nmodel.compile(optimizer=keras.optimizers.SGD(0.02), loss='mse')\nhistory = model.fit(keras.utils.timeseries_dataset_from_array(x, r, 3, batch_size=32), epochs=2, verbose=0)\nreport(loss=history.history['loss'])\n",
        2e-3,
    ),
    "words": (
        "texts = [' '.join(f'w{(i * k) % 17}' for k in range(1, 5)) for i in range(300)]\nturn = keras.layers.TextVectorization(20, output_mode='multi_hot')\nturn.adapt(texts)\nVIEW = turn(np.array(texts)).numpy()\n"
        + _FIT,
        2e-3,
    ),
    "lookup": (
        "texts = np.array([f'w{(i * i) % 17}' for i in range(300)])\nturn = keras.layers.StringLookup(output_mode='one_hot')\nturn.adapt(texts)\nVIEW = turn(texts).numpy()\n"
        + _FIT,
        2e-3,
    ),
    "images": (
        "import os\nfrom PIL import Image\nfor kind in 'ab':\n    os.makedirs('pictures/' + kind, exist_ok=True)\n    for i in range(40): Image.fromarray(rng.randint(0, 128 + 127 * (kind == 'b'), (8, 8, 3)).astype('uint8')).save(f'pictures/{kind}/{i}.png')\ndata = keras.utils.image_dataset_from_directory('pictures', image_size=(8, 8), batch_size=20, shuffle=False)\nmodel = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(2, activation='softmax')])\nmodel.compile(optimizer=keras.optimizers.SGD(0.02), loss='sparse_categorical_crossentropy')\nreport(loss=model.fit(data, epochs=2, verbose=0).history['loss'])\n",
        2e-3,
    ),
    "files": ("np.save('x.npy', x)\nVIEW = np.load('x.npy')\n" + _FIT, 2e-3),
    "folder": (
        "import os, shutil\nif os.path.exists('out'): shutil.rmtree('out')\nos.makedirs('out')\nopen('out/a.txt', 'w').write('1')\nVIEW = x * float(open('out/a.txt').read())\n"
        + _FIT,
        2e-3,
    ),
    "saved-twice": (
        "VIEW = x\n"
        + _FIT
        + "model.save('a.keras')\nmodel = keras.models.load_model('a.keras')\nhistory = model.fit(x, r, batch_size=32, epochs=1, shuffle=False, verbose=0)\nreport(loss=history.history['loss'])\n",
        2e-3,
    ),
    "two-fits": (
        "VIEW = x\n"
        + _FIT
        + "history = model.fit(VIEW, r, batch_size=50, epochs=1, shuffle=False, verbose=0)\nreport(loss=history.history['loss'])\n",
        2e-3,
    ),
    "cross-validation": (
        "losses = []\nfor fold in range(3):\n    keras.utils.set_random_seed(2)\n    keep = np.arange(300) % 3 != fold\n    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1)])\n    model.compile(optimizer='sgd', loss='mse')\n    model.fit(x[keep], r[keep], batch_size=32, shuffle=False, verbose=0)\n    losses.append(model.evaluate(x[~keep], r[~keep], verbose=0))\nreport(losses=losses)\n",
        2e-3,
    ),
    "predict-by-hand": (
        "VIEW = x\n"
        + _FIT
        + "p = model.predict(x, verbose=0)\nm = keras.metrics.TruePositives()\nm.update_state(r > 0, (p > 0).astype('float32'))\nreport(error=float(np.mean((p - r) ** 2)), hits=float(m.result()))\n",
        2e-3,
    ),
    "activity": (
        "VIEW = x\nmodel = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activity_regularizer='l2'), keras.layers.Dense(1)])\nmodel.compile(optimizer=keras.optimizers.SGD(0.01), loss='mse')\nreport(loss=model.fit(x, r, batch_size=32, epochs=2, shuffle=False, verbose=0).history['loss'])\n",
        2e-3,
    ),
    "add-loss-mean": (
        "class Penalty(keras.layers.Layer):\n    def call(self, v):\n        self.add_loss(0.1 * tf.reduce_mean(tf.square(v)))\n        return v\nmodel = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8), Penalty(), keras.layers.Dense(1)])\nmodel.compile(optimizer=keras.optimizers.SGD(0.01), loss='mse')\nreport(loss=model.fit(x, r, batch_size=32, epochs=2, shuffle=False, verbose=0).history['loss'])\n",
        2e-3,
    ),
    "add-loss-sum": (
        "class Penalty(keras.layers.Layer):\n    def call(self, v):\n        self.add_loss(0.01 * tf.reduce_sum(tf.square(v)))\n        return v\nmodel = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8), Penalty(), keras.layers.Dense(1)])\nmodel.compile(optimizer=keras.optimizers.SGD(0.01), loss='mse')\nreport(loss=model.fit(x, r, batch_size=32, epochs=2, shuffle=False, verbose=0).history['loss'])\n",
        2e-3,
    ),
    "variational": (
        "class Sample(keras.layers.Layer):\n    def call(self, v):\n        m, s = v[:, :3], v[:, 3:]\n        self.add_loss(-0.05 * tf.reduce_mean(1 + s - tf.square(m) - tf.exp(s)))\n        return m + tf.exp(0.5 * s) * tf.random.normal(tf.shape(m))\nmodel = keras.Sequential([keras.Input((12,)), keras.layers.Dense(6), Sample(), keras.layers.Dense(12)])\nmodel.compile(optimizer=keras.optimizers.SGD(0.01), loss='mse')\nreport(loss=model.fit(x, x, batch_size=32, epochs=2, shuffle=False, verbose=0).history['loss'])\n",
        0.3,
    ),
}
_OTHER = "has other rows of data than rank 0"
_REFUSED = {
    "state-unseeded": _OTHER,
    "python-unseeded": _OTHER,
    "generator-unseeded": _OTHER,
}
SCRIPTS = [
    Script(
        name=f"trap-{name}",
        source=HEAD + body,
        rtol=rtol,
        refused=_REFUSED.get(name, ""),
        threads=1 + (name == "any-order"),
    )
    for name, (body, rtol) in _TRAPS.items()
]
