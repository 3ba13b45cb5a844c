"""What is said of machines and of the links between ranks' GPUs."""

from dataclasses import replace

from harness.report.run_words import gpu_kinds, gpu_link_words, machine_words, machines_words
from harness.schema.gpu_link import GpuLink, JoinedBy
from harness.schema.record import RunRecord
from tests.labs.factories import make_point, make_run

BLANK = "\N{NO-BREAK SPACE}"


def on_hosts(*hosts: str) -> RunRecord:
    """Return a launch with a rank on each of `hosts`, every one with a GPU."""
    run = make_run(make_point(len(hosts)))
    ranks = [replace(rank, host=host, device=f"GPU-{rank.rank}") for rank, host in zip(run.ranks, hosts, strict=True)]
    return replace(run, ranks=tuple(ranks))


def test_pairs_of_ranks_are_counted_by_what_joins_them() -> None:
    links = (GpuLink(ranks=(0, 1), joined_by=JoinedBy.NVLINK), GpuLink(ranks=(2, 3), joined_by=JoinedBy.NVLINK))
    words = gpu_link_words(replace(on_hosts("a", "a", "b", "b"), gpu_links=links))
    assert f"NVLink (2{BLANK}pairs)" in words
    assert f"network (4{BLANK}pairs)" in words
    assert "not known" not in words


def test_what_nvml_does_not_say_is_not_known_and_one_rank_has_no_pair() -> None:
    assert f"not known (1{BLANK}pair)" in gpu_link_words(on_hosts("a", "a"))
    assert gpu_link_words(on_hosts("a")) == gpu_link_words(make_run(make_point(2))) == ""


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
