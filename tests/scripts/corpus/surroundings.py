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
with concurrent.futures.ThreadPoolExecutor(2) as threads: report(loss=list(threads.map(train, (3, 5))))
"""

SCRIPTS = [
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
