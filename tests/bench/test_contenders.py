"""Who takes part in a bench, and how a network is told to them."""

from pathlib import Path

import pytest

from harness.bench.contenders import CONTENDERS, Task, choose_contenders
from harness.report.bench_answer import TEXT, bench_answer
from tests.labs.bench_records import bench_record
from tests.labs.sentences import refuses, says


def test_who_cannot_take_part_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.bench.contenders.find_spec", lambda name: None)
    chosen, left_out = choose_contenders((), {"horovod": "/peers/bin/python"}, 2)
    assert {one.name for one in chosen} == set(CONTENDERS) - {"ddp"}
    assert next(one for one in chosen if one.name == "horovod").python == "/peers/bin/python"
    says(left_out["ddp"], "torch", "--torch-python")
    alone, left_out = choose_contenders((), {}, 1)
    assert {one.name for one in alone} == {"bare-1", "ours-1", "keras-fit"}
    says(left_out["mwms"], "cores, this machine", 2, 1)
    assert left_out["ddp"] in bench_answer(bench_record(left_out=left_out)).files[TEXT]


def test_some_contenders_can_be_chosen_and_the_bare_loop_is_with_them() -> None:
    assert [one.name for one in choose_contenders(("mwms",), {}, 2)[0]] == ["bare", "mwms"]
    with refuses("are known, such", "mwm", "mwms"):
        choose_contenders(("mwm",), {}, 2)


def test_a_python_by_its_bare_name_is_the_one_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mpirun beside it starts its ranks."""
    program = tmp_path / "horovods-python"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    *_, chosen = choose_contenders(("horovod",), {"horovod": "horovods-python"}, 2)[0]
    assert chosen.python == str(program)


def test_the_papers_networks_can_be_told_to_who_has_no_keras() -> None:
    from harness.bench.contenders.script import bench_network, describe_layer

    tasks = [Task(dataset="mnist", model=model, rows=512) for model in ("dnn", "cnn")]
    dnn, cnn = ([describe_layer(layer) for layer in bench_network(task).layers] for task in tasks)
    dense = [{"kind": "dense", "units": units, "activation": "sigmoid"} for units in (200, 100)]
    assert dnn == [{"kind": "flatten"}, *dense, {"kind": "dense", "units": 10, "activation": "linear"}]
    assert cnn[:2] == [
        {"kind": "convolution", "units": 32, "size": 5, "activation": "relu"},
        {"kind": "pooling", "size": 2},
    ]
