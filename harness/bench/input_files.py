"""Writes what scripts that import nothing of the harness train, rows, labels, network and recipe, as files."""

import json
import sys
from pathlib import Path
from typing import Any

import keras
import msgspec
import numpy as np

from harness.bench.plan import Task
from harness.bench.script import build_network, standardised


def main() -> None:
    """Write the files into the folder that the command line names behind the task."""
    task, folder = msgspec.json.decode(sys.argv[1], type=Task), Path(sys.argv[2])
    rows, labels = standardised(task)
    np.save(folder / "rows.npy", rows)
    np.save(folder / "labels.npy", labels)
    network = build_network(task)
    (folder / "network.json").write_text(network.to_json())
    workload = task.workload()
    recipe = {name: getattr(workload, name) for name in ("optimizer", "schedule", "weight_decay", "augment")}
    (folder / "recipe.json").write_text(json.dumps(recipe))
    (folder / "layers.json").write_text(json.dumps([describe(layer) for layer in network.layers]))


def describe(layer: keras.Layer) -> dict[str, Any]:
    """Return a layer of paper A's networks in words that need no Keras.

    Raises:
        TypeError: they have no such layer.
    """
    match layer:
        case keras.layers.Dense():
            return {"kind": "dense", "units": layer.units, "activation": layer.activation.__name__}
        case keras.layers.Conv2D(padding="same", strides=(1, 1)):
            size, activation = layer.kernel_size[0], layer.activation.__name__
            return {"kind": "convolution", "units": layer.filters, "size": size, "activation": activation}
        case keras.layers.MaxPooling2D():
            return {"kind": "pooling", "size": layer.pool_size[0]}
        case keras.layers.Reshape() | keras.layers.Flatten():
            return {"kind": "flatten"}
    raise TypeError(f"no words for {type(layer).__name__}")


if __name__ == "__main__":
    main()
