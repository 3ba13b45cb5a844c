"""The peak rates of GPUs as their vendor states them: dense matrix products, without sparsity.

float32 is computed in TF32 where the GPU has it, which is TensorFlow's default. Sources are NVIDIA's own, where most
figures of Ampere and later are with sparsity, which doubles them:

* "NVIDIA V100 Tensor Core GPU" (data sheet, 2020): SXM2, PCIe and V100S; "NVIDIA T4" (data sheet, 2019).
* "NVIDIA A100 Tensor Core GPU", "A30", "A40", "A10" (data sheets, 2021): 312, 165, 149.7 and 125 without sparsity.
* "NVIDIA L4", "L40", "L40S" (data sheets, 2023): 242, 362 and 733 with sparsity, in TF32 half of that.
* "NVIDIA H100 Tensor Core GPU Architecture" (white paper): 989.4 and 494.7 of the SXM module, whose data sheet
  rounds them; "NVIDIA H100" (data sheet): 1,513 of the PCIe card and 1,671 of the NVL card with sparsity.
* "NVIDIA H200" (data sheet): as H100 SXM, and 1,671 of the NVL card.
* "NVIDIA GH200 Grace Hopper Superchip" (data sheet): 990 and 494 without sparsity, the same chip as the SXM module.

Copies of these sheets in public tables agree; none was found of A30, GH200 and the NVL cards.
"""

import re
from dataclasses import dataclass

_PRECISIONS = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16", "float32": "float32"}


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuPeak:
    """The peaks of one kind of GPU in TFLOP/s; `pattern` is of its driver's name. None where it has no such type."""

    pattern: str
    float16: float
    bfloat16: float | None
    float32: float

    def of(self, precision: str) -> float | None:
        """Return the peak of a `precision` of `Workload`."""
        peaks = {"float16": self.float16, "bfloat16": self.bfloat16, "float32": self.float32}
        return peaks[_PRECISIONS[precision]]


PEAKS = (
    GpuPeak(pattern=r"(NVIDIA |Tesla )V100-SXM2-.*", float16=125.0, bfloat16=None, float32=15.7),
    GpuPeak(pattern=r"(NVIDIA |Tesla )V100-PCIE-.*", float16=112.0, bfloat16=None, float32=14.0),
    GpuPeak(pattern=r"(NVIDIA |Tesla )V100S-PCIE-.*", float16=130.0, bfloat16=None, float32=16.4),
    GpuPeak(pattern=r"(NVIDIA |Tesla )T4", float16=65.0, bfloat16=None, float32=8.1),
    GpuPeak(pattern=r"(NVIDIA )?A100[- ](SXM4|PCIE|PCIe|80GB).*", float16=312.0, bfloat16=312.0, float32=156.0),
    GpuPeak(pattern=r"(NVIDIA )?A30", float16=165.0, bfloat16=165.0, float32=82.0),
    GpuPeak(pattern=r"(NVIDIA )?A40", float16=149.7, bfloat16=149.7, float32=74.8),
    GpuPeak(pattern=r"(NVIDIA )?A10", float16=125.0, bfloat16=125.0, float32=62.5),
    GpuPeak(pattern=r"NVIDIA L4", float16=121.0, bfloat16=121.0, float32=60.0),
    GpuPeak(pattern=r"NVIDIA L40", float16=181.0, bfloat16=181.0, float32=90.5),
    GpuPeak(pattern=r"NVIDIA L40S", float16=362.0, bfloat16=362.0, float32=183.0),
    GpuPeak(pattern=r"NVIDIA (H100 80GB HBM3|H200|GH200 .*)", float16=989.4, bfloat16=989.4, float32=494.7),
    GpuPeak(pattern=r"NVIDIA H100 PCIe", float16=756.5, bfloat16=756.5, float32=378.0),
    GpuPeak(pattern=r"NVIDIA (H100|H200) NVL", float16=835.5, bfloat16=835.5, float32=417.5),
)


def gpu_peak(gpu: str, precision: str) -> float | None:
    """Return the stated peak in TFLOP/s of a record's `gpu`, None of one that is not in the table, or a part of one."""
    name = gpu.partition(",")[0]
    for peak in PEAKS:
        if re.fullmatch(peak.pattern, name) and "MIG" not in name:
            return peak.of(precision)
    return None
