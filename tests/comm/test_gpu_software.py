"""What the record has of a GPU's software: versions that are installed or built for, and what MPI says of GPUs."""

from types import SimpleNamespace

import pytest

from harness.comm.gpu_software import _mpi_library, cuda_aware_mpi, gpu_software, installed_versions


def test_the_record_has_the_versions_that_are_installed_or_what_tensorflow_is_built_for() -> None:
    packages = {"nvidia-cudnn-cu12": "9.24.0.43", "nvidia-nccl-cu12": "2.28.9"}
    versions = installed_versions(lambda name: packages.get(name, ""), {"cuda_version": "12.5.1", "cudnn_version": "9"})
    assert versions == {
        "cuDNN": "9.24.0.43",
        "NCCL": "2.28.9",
        "CUDA": "the system's, TensorFlow is built for 12.5.1",
    }
    assert gpu_software(None, "nccl") == {}


@pytest.mark.parametrize(
    ("library", "answer"),
    [
        (SimpleNamespace(MPIX_Query_cuda_support=lambda: 1), "yes"),
        (SimpleNamespace(MPIX_Query_cuda_support=lambda: 0), "no"),
        (SimpleNamespace(), "not known"),  # the question is no part of the standard
    ],
)
def test_mpi_is_asked_whether_it_takes_a_gpus_memory(library: SimpleNamespace, answer: str) -> None:
    assert cuda_aware_mpi(library) == answer


def test_the_loaded_mpi_library_is_asked() -> None:
    from mpi4py import MPI

    expected = ("yes", "no") if "Open MPI" in MPI.Get_library_version() else ("yes", "no", "not known")
    assert cuda_aware_mpi(_mpi_library()) in expected
