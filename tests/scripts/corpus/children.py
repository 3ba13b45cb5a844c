"""Scripts with child processes, in the habits of public bug reports."""

from tests.scripts.corpus import HEAD, Script

_MADE = """
import multiprocessing, subprocess, sys
def begin(seed): np.random.seed(seed)
def block(number): return np.random.default_rng(number).normal(size=(60, 12)).astype('float32')
with multiprocessing.get_context('fork').Pool(2, initializer=begin, initargs=(17,)) as pool:
    x = np.concatenate(pool.map(block, range(5), chunksize=1))
class Rows(keras.utils.PyDataset):
    def __len__(self): return 15
    def __getitem__(self, number): return x[20*number:20*number+20], r[20*number:20*number+20]
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.02), 'mse')
rows = Rows(workers=2, use_multiprocessing=True)
found = model.fit(rows, epochs=2, shuffle=False, verbose=0).history['loss']
said = subprocess.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True, text=True, check=True).stdout
report(loss=found, said=int(said))
"""
_TRAINED = """
import multiprocessing, time
import numpy as np
def trial(queue):
    import keras
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile('sgd', 'mse')
    for _ in range(100):
        queue.put(model.fit(np.ones((40, 3)), np.ones((40, 1)), verbose=0).history['loss'][-1])
        time.sleep(1)
if __name__ == '__main__':
    context = multiprocessing.get_context('$how')
    queue = context.Queue()
    process = context.Process(target=trial, args=(queue,))
    process.start()
    while process.is_alive(): queue.get(timeout=100)
"""

SCRIPTS = [
    Script(name="children-make-rows", source=HEAD + _MADE),
    *(
        Script(
            name=f"children-trained-{how}",
            source=_TRAINED.replace("$how", how),
            refused="trains in child processes, which are no ranks",
            forks=True,
        )
        for how in ("fork", "spawn")
    ),
]
