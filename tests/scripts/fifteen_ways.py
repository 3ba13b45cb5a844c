"""Writes and reads back in fifteen ways, then trains a little; prints what it has read back."""

import gzip
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
place = Path("out")
if place.exists():
    shutil.rmtree(place)
place.mkdir()
read = {}
with open(place / "plain.txt", "a") as file:  # noqa: PTH123 - one of the ways
    file.write("row\n")
read["open"] = len((place / "plain.txt").read_text().splitlines())
with open("log.csv", "a") as file:  # noqa: PTH123
    file.write("row\n")
read["append"] = len(Path("log.csv").read_text().splitlines())
with gzip.open(place / "a.gz", "wb") as packed:
    packed.write(b"x" * 10)
with gzip.open(place / "a.gz") as packed:
    read["gzip"] = len(packed.read())
with zipfile.ZipFile(place / "a.zip", "w") as archive:
    archive.write(place / "plain.txt", "plain.txt")
read["zipfile"] = zipfile.ZipFile(place / "a.zip").read("plain.txt").decode()
with tarfile.open(place / "a.tar", "w") as archive:
    archive.add(place / "plain.txt", "plain.txt")
with tarfile.open(place / "a.tar") as archive:
    read["tarfile"] = archive.getnames()
read["shutil"] = Path(shutil.copy(place / "plain.txt", place / "copy.txt")).stat().st_size
database = sqlite3.connect("rows.db")
database.execute("CREATE TABLE IF NOT EXISTS rows (x)")
database.execute("INSERT INTO rows VALUES (1)")
database.commit()
read["sqlite3"] = database.execute("SELECT COUNT(*) FROM rows").fetchone()[0]
database.close()
with h5py.File(place / "a.h5", "w") as file:
    file["x"] = np.arange(3)
read["h5py"] = h5py.File(place / "a.h5")["x"][:].tolist()
tf.io.gfile.makedirs("out/deep/er")
with tf.io.gfile.GFile("out/deep/er/g.txt", "w") as file:
    file.write("row\n")
read["gfile"] = (tf.io.gfile.listdir("out/deep/er"), tf.io.gfile.GFile("out/deep/er/g.txt").read())
with tf.io.TFRecordWriter("out/rows.tfrecord") as writer:
    for row in range(3):
        writer.write(bytes([row]))
read["tfrecord"] = len(list(tf.data.TFRecordDataset("out/rows.tfrecord")))
with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
    file.write("temporary")
read["tempfile"] = Path(file.name).read_text()
Path(file.name).unlink()
(place / "path.txt").write_text("path")
read["pathlib"] = (place / "path.txt").rename(place / "renamed.txt").stat().st_size
subprocess.run(["cp", "out/plain.txt", "out/copied.txt"], check=True)
read["cp"] = (place / "copied.txt").read_text()
mapped = np.memmap(place / "mapped.bin", "float32", "w+", shape=(4,))
mapped[:] = 2
mapped.flush()
read["memmap"] = float(np.memmap(place / "mapped.bin", "float32", "r").sum())

x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=24, epochs=2, verbose=0)
checkpoint = tf.train.Checkpoint(model=model)
saved = checkpoint.save("out/checkpoint/ckpt")
before = model.get_weights()[0]
model.set_weights([2 * weight for weight in model.get_weights()])
checkpoint.restore(saved)
read["checkpoint"] = bool((model.get_weights()[0] == before).all())
model.export("out/exported", verbose=False)
exported = tf.saved_model.load("out/exported")
read["savedmodel"] = len(exported.serve(x[:5]))
print("READ", sorted(read.items()))
