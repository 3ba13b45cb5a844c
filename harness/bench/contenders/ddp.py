"""PyTorch's DistributedDataParallel over gloo. This script imports nothing of the harness.

    mpirun -n 2 --bind-to core python ddp.py FOLDER BATCH SEED RATE

FOLDER has rows.npy, float32 [rows, features] or [rows, height, width, channels], standardised, labels.npy, int32
[rows], and layers.json, a description of the network's layers; the ranks meet in a file there. Every rank trains on an
equal part of the rows, BATCH at a time, by PyTorch's usual eager loop over shuffled batches with plain SGD on one
thread, epoch after epoch.

Rank 0 notes the version, and the mean loss of the first epoch (first_epoch.py), after which all ranks must have the
same weights. What lies beside this script as turns.py (harness/base) lets it train in turns; without a block it trains
without end.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from first_epoch import note_first_epoch  # standard library only, as the next
from torch import distributed, nn
from turns import join_turns

_ACTIVATIONS: dict[str, list[type[nn.Module]]] = {"sigmoid": [nn.Sigmoid], "relu": [nn.ReLU], "linear": []}


def build(layers: list[dict[str, Any]], inputs: torch.Tensor) -> nn.Sequential:
    """Return the network, with logits as output, that `layers` describe, with PyTorch's own initial weights.

    `inputs`, float32 [rows, *features] with the channels of images first, give it its shape.
    """
    modules: list[nn.Module] = []
    for layer in layers:
        kind = layer["kind"]
        if kind == "dense":
            modules.append(nn.LazyLinear(layer["units"]))
        elif kind == "convolution":
            modules.append(nn.LazyConv2d(layer["units"], layer["size"], padding="same"))
        elif kind == "pooling":
            modules.append(nn.MaxPool2d(layer["size"]))
        else:
            modules.append(nn.Flatten())
        modules += [activation() for activation in _ACTIVATIONS[layer.get("activation", "linear")]]
    network = nn.Sequential(*modules)
    network(inputs)
    return network


def _number(*names: str) -> int:
    """Return what Open MPI's or MPICH's launcher says of this rank."""
    return int(next(os.environ[name] for name in names if name in os.environ))


def main() -> None:
    """Train as the command line asks."""
    folder = Path(sys.argv[1])
    batch = int(sys.argv[2])
    seed = int(sys.argv[3])
    rate = float(sys.argv[4])
    rank = _number("OMPI_COMM_WORLD_RANK", "PMI_RANK")
    size = _number("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    distributed.init_process_group("gloo", init_method=(folder / "meet").as_uri(), rank=rank, world_size=size)
    rows, labels = (np.load(folder / f"{part}.npy", mmap_mode="r") for part in ("rows", "labels"))
    share = slice(rank * len(rows) // size, (rank + 1) * len(rows) // size)
    x = np.array(rows[share])
    if x.ndim == 4:
        x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))  # PyTorch's images have their channels first
    inputs = torch.from_numpy(x)
    targets = torch.from_numpy(np.array(labels[share])).long()
    layers = json.loads((folder / "layers.json").read_text())
    network = nn.parallel.DistributedDataParallel(build(layers, inputs[:1]))
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    turns = join_turns(rank, size)
    first_epoch = True
    while True:
        losses = []
        for chosen in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(inputs[chosen]), targets[chosen])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if turns:
                turns.step()
        if turns:
            turns.leave()
        if first_epoch:
            report_epoch(rank, size, network, torch.stack(losses).mean())
            first_epoch = False


def report_epoch(rank: int, size: int, network: nn.Module, mean: torch.Tensor) -> None:
    """Compare all ranks' weights, and note the loss, whose `mean` each has of its own rows."""
    distributed.all_reduce(mean)
    weights = b"".join(weights.detach().numpy().tobytes() for weights in network.parameters())
    digests = [hashlib.sha256(weights).hexdigest()] * size
    distributed.all_gather_object(digests, digests[0])
    if len(set(digests)) > 1:
        sys.exit("ranks have different weights: they were not synchronised")
    if rank == 0:
        note_first_epoch(float(mean) / size, f"PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
