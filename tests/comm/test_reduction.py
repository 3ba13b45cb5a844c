"""Exchanges on two devices are one sequence, as those of the processor and of a GPU are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A process of its own: devices are chosen before TensorFlow starts. The second processor stands for a GPU.
PROGRAM = """
import time
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
from harness.comm import reduction as exchange_order

exchange_order.exchange_devices = lambda: ("CPU:0", "CPU:1")
met = []


def exchange(label, device, value, seconds):
    def meet(value, handle):
        time.sleep(seconds)  # long enough for a later one to come first, where nothing keeps it
        met.append(label)
        return value

    with exchange_order.in_sequence(device=device) as sequence:
        return tf.numpy_function(meet, [value, sequence], tf.float32)


@tf.function
def nested(value):
    return exchange("inner slow", "CPU:0", value, 0.2)


@tf.function
def step(value):
    sums = [exchange("first slow", "CPU:1", value, 0.2), exchange("second", "CPU:0", value, 0.0)]
    sums.append(nested(value))
    sums.append(exchange("after inner", "CPU:1", value, 0.0))
    for number in tf.range(2):
        exchange("loop slow", "CPU:1", value, 0.1)
        exchange("loop", "CPU:0", value, 0.0)
    if value > 0.0:
        exchange("branch slow", "CPU:0", value, 0.2)
    sums.append(exchange("last", "CPU:1", value, 0.0))
    return tf.add_n([tf.cast(total, tf.float32) for total in sums])


step(tf.constant(1.0)).numpy()
print(met)
"""


@pytest.mark.slow  # a process of its own starts TensorFlow
def test_exchanges_of_two_devices_run_as_they_were_built(tmp_path: Path) -> None:
    program = tmp_path / "two_devices.py"  # a file: TensorFlow rewrites the loop by its source
    program.write_text(PROGRAM)
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    reply = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    expected = ["first slow", "second", "inner slow", "after inner"]
    expected += ["loop slow", "loop"] * 2 + ["branch slow", "last"]
    assert reply.stdout.splitlines() == [str(expected)], reply.stderr
