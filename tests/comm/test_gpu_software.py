"""What the record has of a GPU's software: versions that are installed or built for."""

from harness.comm.gpu_software import gpu_software, installed_versions


def test_the_record_has_the_versions_that_are_installed_or_what_tensorflow_is_built_for() -> None:
    packages = {"nvidia-cudnn-cu12": "9.24.0.43", "nvidia-nccl-cu12": "2.28.9"}
    versions = installed_versions(lambda name: packages.get(name, ""), {"cuda_version": "12.5.1", "cudnn_version": "9"})
    assert versions == {
        "cuDNN": "9.24.0.43",
        "NCCL": "2.28.9",
        "CUDA": "the system's, TensorFlow is built for 12.5.1",
    }
    assert gpu_software(None, "nccl") == {}
