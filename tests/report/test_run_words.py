"""What is said of machines."""

from dataclasses import replace

from harness.report.run_words import gpu_kinds, machine_words, machines_words
from tests.labs.factories import make_run


def test_a_machine_stands_once_whatever_number_of_gpus_a_launch_had() -> None:
    machine = make_run().provenance.machine
    h100 = "NVIDIA H100 80GB HBM3, 81559 MiB"
    with_gpus = [replace(machine, gpus=(h100,) * count) for count in (1, 2, 4)]
    words = machines_words(with_gpus)
    assert words.startswith(machine_words(machine))
    assert words.endswith(", 1 to 4 GPUs")
    assert gpu_kinds(with_gpus) == f"1 to 4 x {h100}"
    assert gpu_kinds([machine]) == ""
    assert machines_words([machine, machine]) == machine_words(machine)
    assert machines_words(with_gpus[:1]).endswith(", 1 GPU")
