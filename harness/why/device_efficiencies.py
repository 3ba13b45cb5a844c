"""How far the time of a sweep's GPUs is in use: the device side of the efficiencies.

Definitions are those of TALP of the DLB library (https://pm.bsc.es/dlb). Known is the part of a launch, evaluations
included, in which a kernel ran on each GPU. Copies count as idle here, so that TALP's communication and orchestration
efficiency are known as their product alone. TALP's device offload efficiency, of what the host spends in calls of the
GPU's runtime, needs a tracer in the ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.schema.record import RunRecord

DEVICE_TALP_NAMES = {"parallel": "gpuParallelEfficiency", "load_balance": "gpuLoadBalance"}


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceEfficiency:
    """The use of one layout's GPUs, means over its `launches`: `parallel` is `load_balance` times `busiest`.

    `parallel` is the time with kernels, the mean of all GPUs, over the launch's time; `load_balance` that mean over the
    GPU with most; `busiest` the time of that GPU over the launch's.
    """

    layout: str
    ranks: int
    launches: int
    parallel: float
    load_balance: float
    busiest: float


def device_efficiencies(runs: Sequence[RunRecord]) -> tuple[DeviceEfficiency, ...]:
    """Return the efficiencies of every layout of `runs` whose GPUs' kernels are known, fewest ranks first."""
    by_layout: dict[str, list[tuple[float, ...]]] = {}
    ranks: dict[str, int] = {}
    for run in runs:
        shares = kernel_shares(run)
        if shares:
            by_layout.setdefault(str(run.point.layout), []).append(shares)
            ranks[str(run.point.layout)] = run.point.layout.ranks
    points = [_efficiency(layout, ranks[layout], launches) for layout, launches in by_layout.items()]
    return tuple(sorted(points, key=lambda point: point.ranks))


def kernel_shares(run: RunRecord) -> tuple[float, ...]:
    """Return the part of the time in which each GPU of a launch ran kernels; empty where one is not known, or all 0."""
    gpus = [device for device in run.energy if device.is_gpu]
    shares = tuple(device.utilisation["kernels"] for device in gpus if "kernels" in device.utilisation)
    return shares if len(shares) == len(gpus) and any(shares) else ()


def _efficiency(layout: str, ranks: int, launches: Sequence[tuple[float, ...]]) -> DeviceEfficiency:
    parallel = fmean(fmean(shares) for shares in launches)
    busiest = fmean(max(shares) for shares in launches)
    return DeviceEfficiency(
        layout=layout,
        ranks=ranks,
        launches=len(launches),
        parallel=parallel,
        load_balance=parallel / busiest,
        busiest=busiest,
    )
