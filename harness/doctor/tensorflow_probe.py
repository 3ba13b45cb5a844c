"""Run by the doctor: import TensorFlow and Keras, print how long it took and which GPUs it sees, as one JSON line."""

import json
import os
import time


def main() -> None:
    """Import, compute once, tell."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    begin = time.perf_counter()
    import keras  # noqa: F401 - imported lazily by TensorFlow, at once by every run
    import tensorflow as tf

    seconds = time.perf_counter() - begin
    gpus = [
        tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    total = float(tf.reduce_sum(tf.ones([2, 2]) @ tf.ones([2, 2])))
    print(json.dumps({"seconds": seconds, "gpus": gpus, "sum": total}), flush=True)


if __name__ == "__main__":
    main()
