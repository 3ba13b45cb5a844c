"""Which processes compute on a rank's GPU, by its driver."""

import importlib.util
import os
from typing import Any

import psutil

from harness.base.turns import BLOCK
from harness.comm.gpus import Gpu


def processes_beside(gpu: Gpu | None) -> tuple[int, ...]:
    """Return the processes that compute on `gpu` now, without those of other launches of this process's turn block.

    Empty without a GPU, without nvidia-ml-py, and where the driver does not say.
    """
    if gpu is None or not importlib.util.find_spec("pynvml"):
        return ()
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return computing_processes(pynvml, gpu.uuid)
    finally:
        pynvml.nvmlShutdown()


def computing_processes(nvml: Any, uuid: str) -> tuple[int, ...]:
    """Return what `processes_beside` does of the GPU with `uuid`, by NVML, the module `pynvml`."""
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError:
        return ()
    return tuple(process.pid for process in running if not _takes_turns(process.pid))


def _takes_turns(pid: int) -> bool:
    """Return whether a process other than this one is of its turn block: it waits while this one trains.

    What one server has forked does not show its environment: it has the same parent.
    """
    block = os.environ.get(BLOCK)
    if not block or pid == os.getpid():
        return False
    try:
        process = psutil.Process(pid)
        return process.ppid() == os.getppid() or bool(process.environ().get(BLOCK) == block)
    except psutil.Error:  # it has ended, or is another user's
        return False
