"""Contender where PyTorch is installed: DistributedDataParallel over gloo, one process on each core."""

import hashlib
import os
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from harness.bench.plan import WARM_UP_EPOCHS, Answer, Task
from harness.bench.script import begin, build_network, own_rows

if TYPE_CHECKING:
    import torch


def main() -> None:
    """Train as the command line asks: PyTorch's usual eager loop over shuffled batches, plain SGD."""
    task, place = begin()
    os.environ["KERAS_BACKEND"] = "torch"  # TensorFlow and PyTorch in one process bring two copies of LLVM
    import torch
    from torch import distributed, nn

    torch.set_num_threads(1)
    torch.manual_seed(task.seed)
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{place.addresses[0]}", rank=place.index, world_size=len(place.addresses)
    )
    x, y = own_rows(task, place)
    if x.ndim == 4:
        x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))  # PyTorch's images have their channels first
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y).long()
    network = nn.parallel.DistributedDataParallel(build_torch_network(task))
    optimizer = torch.optim.SGD(network.parameters(), lr=task.learning_rate)
    seconds, losses = [], []
    for _ in range(WARM_UP_EPOCHS + task.epochs):
        start = time.perf_counter()
        steps = []
        for rows in torch.randperm(len(x)).split(task.batch_per_rank):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(inputs[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            steps.append(loss.detach())
        seconds.append(time.perf_counter() - start)
        losses.append(float(torch.stack(steps).mean()))
    digest = hashlib.sha256(b"".join(weights.detach().numpy().tobytes() for weights in network.parameters()))
    given = Answer(seconds=tuple(seconds), losses=tuple(losses), weights=digest.hexdigest())
    print(msgspec.json.encode(given).decode(), flush=True)
    distributed.destroy_process_group()


def build_torch_network(task: Task) -> "torch.nn.Sequential":
    """Return the harness's network in PyTorch's own layers, with PyTorch's initial weights.

    Input float32 [rows, *features] with the channels of images first, output logits float32 [rows, classes].
    """
    import keras
    from torch import nn

    activations = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU}
    modules: list[nn.Module] = []
    for layer in build_network(task).layers:
        match layer:
            case keras.layers.Dense():
                modules.append(nn.Linear(layer.input.shape[-1], layer.units))
            case keras.layers.Conv2D():
                modules.append(nn.Conv2d(layer.input.shape[-1], layer.filters, layer.kernel_size, padding="same"))
            case keras.layers.MaxPooling2D():
                modules.append(nn.MaxPool2d(layer.pool_size))
            case keras.layers.Reshape() | keras.layers.Flatten():
                modules.append(nn.Flatten())
            case _:
                raise TypeError(f"no PyTorch layer for {type(layer).__name__}")
        name = getattr(getattr(layer, "activation", None), "__name__", "linear")
        if name != "linear":
            modules.append(activations[name]())
    return nn.Sequential(*modules)


if __name__ == "__main__":
    main()
