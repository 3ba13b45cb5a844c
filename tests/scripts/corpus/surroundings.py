"""Scripts that meet their surroundings: ports, files moved between folders, exit handlers, clocks, threads."""

from tests.scripts.corpus import HEAD, Script

_FIT = """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1, kernel_initializer='zeros')])
model.compile(keras.optimizers.SGD(0.01), 'mse')
"""
_SERVED = """
import atexit, http.server, os, tempfile, threading, urllib.request
class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(b'42')
    def log_message(self, *words): pass
server = http.server.HTTPServer(('127.0.0.1', 18765), Metrics)
threading.Thread(target=server.serve_forever, daemon=True).start()
losses = model.fit(x, r, batch_size=30, epochs=2, shuffle=False, verbose=0).history['loss']
served = int(urllib.request.urlopen('http://127.0.0.1:18765/').read())
with tempfile.NamedTemporaryFile(suffix='.keras', delete=False) as file: pass
model.save(file.name)
os.replace(file.name, 'final.keras')
found = keras.models.load_model('final.keras').evaluate(x, r, verbose=0)
atexit.register(lambda: report(loss=losses, served=served, found=found, left=int(os.path.exists(file.name))))
"""
_RATE = """
import threading, time
from datetime import datetime
class Rate(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        clock = []
        thread = threading.Thread(target=lambda: clock.append(time.perf_counter_ns()))
        thread.start(); thread.join()
        self.model.optimizer.learning_rate = 0.01 * (1 + clock[0] % 97 / 97)
        if datetime.now().microsecond % 2: self.model.optimizer.learning_rate = 0.001
model.fit(x, r, batch_size=30, epochs=3, verbose=0, callbacks=[Rate()])
report(learned=int(model.evaluate(x, r, verbose=0) < np.mean(r**2)))
"""
_EXIT = """
import os, sys
report(loss=model.fit(x, r, batch_size=30, epochs=2, shuffle=False, verbose=0).history['loss'])
sys.stdout.flush()
os._exit(0)
"""
_AGAIN = """
import os, sys
model.fit(x, r, batch_size=30, epochs=1, verbose=0)
if not os.environ.get('TRAINED'): os.execve(sys.executable, [sys.executable, __file__], {**os.environ, 'TRAINED': '1'})
report(loss=0.0)
"""
_THREADS = """
import concurrent.futures
def train(width):
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(width), keras.layers.Dense(1)])
    model.compile('sgd', 'mse')
    return model.fit(x, r, batch_size=30, epochs=20, verbose=0).history['loss'][-1]
with concurrent.futures.ThreadPoolExecutor(2) as threads: report(loss=list(threads.map(train, (3, 3))))
"""

_OWN_MPI = """
from mpi4py import MPI
world = MPI.COMM_WORLD
own = slice(world.Get_rank(), None, world.Get_size())
model.set_weights(world.bcast(model.get_weights(), root=0))
losses = []
for epoch in range(2):
    model.fit(x[own], r[own], batch_size=30, shuffle=False, verbose=0)
    model.set_weights([world.allreduce(weight) / world.Get_size() for weight in model.get_weights()])
    losses.append(model.evaluate(x, r, verbose=0))
world.Barrier()
MPI.Finalize()
report(losses=losses, ended=int(MPI.Is_finalized()))
"""
_OPTIONAL_HOROVOD = """
import argparse, csv
parser = argparse.ArgumentParser()
parser.add_argument('--distributed', action='store_true')
distributed = parser.parse_args([]).distributed
if distributed:
    import horovod.tensorflow.keras as hvd
    hvd.init()
class Lines(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        with open('lines.csv', 'a', newline='') as file: csv.writer(file).writerow([epoch, logs['loss']])
model.fit(x, r, batch_size=30, epochs=3, shuffle=False, verbose=0, callbacks=[Lines()])
with open('lines.csv', newline='') as file: report(lines=[float(row[1]) for row in csv.reader(file)])
"""
_UNUSED_HOROVOD = """
import horovod.tensorflow.keras as hvd
report(loss=model.fit(x, r, batch_size=30, verbose=0).history['loss'])
"""
_TRIALS = """
losses = []
for masked in (False, True, False):
    try:
        words = keras.layers.Embedding(9, 4, mask_zero=masked)
        between = [keras.layers.BatchNormalization()] if masked else []
        trial = keras.Sequential([words, *between, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
        trial.compile('sgd', 'mse')
        losses.append(trial.fit(np.abs(x * 4).astype('int32') % 9, r, batch_size=30, verbose=0).history['loss'])
    except Exception as error:
        losses.append([0.0])
report(losses=losses)
"""
_RAISING = """
np.seterr(all='raise')
losses = model.fit(x, r, batch_size=30, epochs=2, shuffle=False, verbose=0).history['loss']
optimizer = keras.optimizers.Adam(0.01)
for rows, wanted in tf.data.Dataset.from_tensor_slices((x, r)).batch(30):
    with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.square(model(rows) - wanted))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
report(losses=losses, loss=float(loss))
"""

SCRIPTS = [
    Script(name="surroundings-own-mpi", source=HEAD + _FIT + _OWN_MPI),
    Script(name="surroundings-optional-horovod", source=HEAD + _FIT + _OPTIONAL_HOROVOD),
    Script(name="surroundings-unused-horovod", source=HEAD + _FIT + _UNUSED_HOROVOD, refused="without Horovod's init"),
    Script(name="surroundings-trials-that-may-fail", source=HEAD + _FIT + _TRIALS, refused="with a mask has other"),
    Script(name="surroundings-raising-numpy", source=HEAD + _FIT + _RAISING),
    Script(name="surroundings-served-and-moved", source=HEAD + _FIT + _SERVED),
    Script(name="surroundings-rate-of-a-thread", source=HEAD + _FIT + _RATE),
    Script(name="surroundings-exit-at-once", source=HEAD + _FIT + _EXIT),
    Script(
        name="surroundings-another-program",
        source=HEAD + _FIT + _AGAIN,
        refused="puts another program in its own place",
    ),
    Script(name="surroundings-threads", source=HEAD + _THREADS, refused="trains in several threads at once"),
]
