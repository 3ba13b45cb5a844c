"""The processor's name comes from the kernel, without a program that the other ranks would wait for."""

from pathlib import Path

import cpuinfo
import pytest

from harness.base.provenance import processor_name


def test_the_kernels_name_of_the_processor_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpuinfo, "get_cpu_info", lambda: pytest.fail("a program was started"))
    facts = tmp_path / "cpuinfo"
    facts.write_text("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 7B13 \nstepping\t: 1\n")
    assert processor_name(facts) == "AMD EPYC 7B13"


def test_a_kernel_without_a_name_leaves_it_to_cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpuinfo, "get_cpu_info", lambda: {"brand_raw": "Neoverse-N1"})
    facts = tmp_path / "cpuinfo"
    facts.write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")
    assert processor_name(facts) == "Neoverse-N1"
