"""How many GPUs a node has, by all that Slurm prints of its generic resources."""

import json

import pytest

from harness.base.processes import Reply
from harness.schema.layout import Layout
from harness.sweep.job_nodes import expand
from harness.sweep.schedulers import slurm
from harness.sweep.schedulers.slurm import gpus_of, read_node_gpus, read_partitions
from harness.sweep.site import JobRequest
from tests.labs.sentences import says

GRES = {
    "(null)": 0,
    "": 0,
    "N/A": 0,
    "gpu": 1,
    "gpu:4": 4,
    "gpu:4(S:0-1)": 4,
    "gpu:v100:4": 4,
    "gpu:v100-32gb:4(S:0-1)": 4,
    "gpu:a100_1g.5gb:7": 7,
    "gpu:a100": 1,
    "gpu:1080ti:8": 8,
    "gpu:1080:3": 3,
    "gpu:1g.10gb:28(S:0-1),gpu:ampere:6(S:0-1)": 34,
    "gpu:1g.5gb:7,gpu:2g.10gb:3,gpu:3g.20gb:2": 12,
    "gpu:nvidia_h100_80gb_hbm3_1g.10gb:7(S:0),gpu:nvidia_h100_80gb_hbm3:3(S:1)": 10,
    "gpu:h100-sxm5.80gb:8(S:0-1)(IDX:0-7)": 8,
    "gpu:a100:4(S:0,2,4),mps:a100:400(S:0)": 4,
    "gpu:a100:2(IDX:0-1,5),shard:a100:16(0/16)": 2,
    "gpu:mi250x:8(S:0-7),nic:slingshot:4": 8,
    "craynetwork:4,gpu:4": 4,
    "nic:gpu:2": 0,
    "gpu_mem:80G,gpu:rtx_6000_ada:2": 2,
    "lustre:no_consume:4G": 0,
    "gpu:tesla:2K": 2048,
}


@pytest.mark.parametrize(("gres", "count"), GRES.items())
def test_gpus_of_all_types_are_counted(gres: str, count: int) -> None:
    assert gpus_of(gres) == count
    (partition,) = read_partitions(f"gpu*|8|2|32|512000|{gres}|2-00:00:00")
    assert partition.gpus_per_node == count


@pytest.mark.parametrize("gres", ["gpu:a b:3", "gpu:a100:4(S:0-1", "gpu,,gpu:2)", "gpu:(4):2", "{gpu: 4}, x"])
def test_what_cannot_be_read_is_not_known_instead_of_none(gres: str) -> None:
    assert gpus_of(gres) is None
    (partition,) = read_partitions(f"gpu*|8|2|32|512000|{gres}|2-00:00:00")
    assert partition.gpus_per_node is None


NODES = {
    "nodes": [
        {"partitions": ["gpu"], "gres": "?", "tres": "cpu=64,mem=500G,billing=64,gres/gpu=4,gres/gpu:a100=4"},
        {"partitions": ["gpu", "all"], "gres": "?", "tres": "cpu=64,gres/gpu=8"},
        {"partitions": ["all"], "gres": "gpu:v100-32gb:2(S:0-1)", "tres": "cpu=4,mem=4000M"},
        {"partitions": ["cpu"], "gres": "", "tres": "cpu=4"},
    ]
}


@pytest.mark.parametrize(
    ("answer", "gpus"),
    [
        (json.dumps(NODES), {"gpu": 8, "all": 8, "cpu": 0}),
        (json.dumps({"nodes": []}), {}),
        (json.dumps({"nodes": [{"partitions": ["x"], "gres": "?(", "tres": "cpu=4"}]}), None),
        ("NodeName=n1 Arch=x86_64", None),
        (json.dumps({"errors": ["no plugin"]}), None),
        ("[]", None),
    ],
)
def test_scontrol_in_json_says_it_where_sinfo_cannot_be_read(answer: str, gpus: dict[str, int] | None) -> None:
    assert read_node_gpus(answer) == gpus


@pytest.mark.parametrize(("answer", "refused"), [(json.dumps(NODES), True), ("not JSON", False)])
def test_a_layout_is_refused_for_gpus_only_where_their_count_is_known(
    answer: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(words: tuple[str, ...]) -> Reply:
        text = answer if words[0] == "scontrol" else "gpu*|8|2|32|512000|gpu:a b:3|2-00:00:00"
        return Reply(code=0, out=text, err="")

    built = slurm.Scheduler(request=JobRequest(partition="gpu"))
    monkeypatch.setattr(built.commands, "ask", ask)
    assert built.refusal(Layout(nodes=1, ranks_per_node=8, gpus_per_rank=1)) is None
    beyond = built.refusal(Layout(nodes=1, ranks_per_node=9, gpus_per_rank=1))
    if refused:
        says(beyond, "needs", 9, "GPUs", "gpu", 8)
    else:
        assert beyond is None


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("n1", ["n1"]),
        ("nid[0001,0007]", ["nid0001", "nid0007"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
        ("a,b[3],c[1-2,5]", ["a", "b3", "c1", "c2", "c5"]),
    ],
)
def test_node_lists_of_every_form(nodes: str, names: list[str]) -> None:
    assert list(expand(nodes)) == names
