"""Versions of what a GPU's speed depends on besides TensorFlow: its driver, CUDA, cuDNN and NCCL."""

from collections.abc import Callable, Mapping

from harness.base.errors import RunError
from harness.base.provenance import package_version
from harness.comm.gpus import Gpu
from harness.comm.nccl_reduction import load_nccl
from harness.schema.message_cost import Algorithm

_PACKAGES = {
    "CUDA": ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12"),
    "cuDNN": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "NCCL": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
}
_BUILT_FOR = {"CUDA": "cuda_version", "cuDNN": "cudnn_version"}


def gpu_software(gpu: Gpu | None, algorithm: str) -> dict[str, str]:
    """Return what the record has of the software of a rank's `gpu`, none without one; `algorithm` is how ranks sum."""
    if gpu is None:
        return {}
    import tensorflow as tf

    versions = {"driver": gpu.driver, **installed_versions(package_version, tf.sysconfig.get_build_info())}
    if algorithm == Algorithm.NCCL:
        versions["NCCL"] = _loaded_nccl() or versions.get("NCCL", "")
    return versions


def installed_versions(version_of: Callable[[str], str], built_for: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of CUDA's libraries by name: of installed Python packages, or what TensorFlow is built for.

    `version_of` returns the version of a package, empty where it is not installed; `built_for` is TensorFlow's
    description of its build.
    """
    versions = {}
    for name, packages in _PACKAGES.items():
        installed = next(filter(None, map(version_of, packages)), "")
        wanted = str(built_for.get(_BUILT_FOR.get(name, ""), ""))
        if installed:
            versions[name] = installed
        elif wanted:
            versions[name] = f"the system's, TensorFlow is built for {wanted}"
    return versions


def _loaded_nccl() -> str:
    try:
        return load_nccl().version
    except RunError:
        return ""
