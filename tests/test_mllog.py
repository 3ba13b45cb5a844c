"""MLPerf's log lines: in order, of the record's own numbers, and taken by mlcommons' own checker."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.base.errors import UserError
from harness.cli.export import mllog as command
from harness.report.mllog import Submitter, mllog
from harness.schema.record import RunRecord
from tests.factories import make_run

RECORDS = Path(__file__).parent / "data"


def events(text: str) -> list[dict[str, Any]]:
    lines = text.splitlines()
    assert all(line.startswith(":::MLLOG {") for line in lines)
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


def test_the_lines_have_the_numbers_of_the_record() -> None:
    run = make_run(seconds=[[2.0, 3.0], [4.0, 1.0], [1.0, 1.0]])
    found = events(mllog(run, Submitter(organisation="us")))
    times = [one["time_ms"] for one in found]
    assert times == sorted(times) and times[0] == round(run.started.timestamp() * 1000)
    by_key: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        by_key.setdefault(one["key"], []).append(one)
    first, second, third = by_key["eval_accuracy"]
    assert [one["value"] for one in (first, second, third)] == [epoch.test_accuracy for epoch in run.epochs]
    assert first["metadata"]["epoch_num"] == 1 and by_key["run_stop"][0]["metadata"]["status"] == "success"
    assert by_key["epoch_stop"][1]["time_ms"] - by_key["epoch_start"][1]["time_ms"] == 4000
    assert by_key["cache_clear"][0]["value"] is False and by_key["submission_benchmark"][0]["value"] == "mnist-dnn"
    until = events(mllog(run, Submitter(organisation="us", target=0.9)))
    assert [one["metadata"]["epoch_num"] for one in until if one["key"] == "eval_accuracy"] == [1, 2]
    never = events(mllog(run, Submitter(organisation="us", target=0.999)))
    assert never[-1]["metadata"]["status"] == "aborted"


def test_what_is_no_result_is_refused() -> None:
    with pytest.raises(UserError, match="is no result: too few cores"):
        mllog(make_run(invalid=("too few cores",)), Submitter(organisation="us"))
    run = make_run()
    blind = replace(run, epochs=tuple(replace(epoch, test_accuracy=None) for epoch in run.epochs))
    with pytest.raises(UserError, match="has no test accuracy"):
        mllog(blind, Submitter(organisation="us"))


def test_every_launch_of_a_sweep_is_written(tmp_path: Path) -> None:
    asked = ["mnist-dnn", "--results", str(RECORDS), "--reports", str(tmp_path)]
    done = CliRunner().invoke(command, asked, catch_exceptions=False)
    assert done.exit_code == 0
    logs = sorted(tmp_path.glob("mllog/mnist-dnn-6x2/*.txt"))
    assert len(logs) == 12 and "12 logs written" in done.output
    one = CliRunner().invoke(
        command, [str(next(RECORDS.glob("mnist-dnn-6x2/n1x*"))), "--reports", str(tmp_path / "one"), "--json"]
    )
    assert len(json.loads(one.stdout)["logs"]) == 1


def test_mlcommons_checker_takes_them(tmp_path: Path) -> None:
    """The last rules that know ResNet-50; of a workload that is not MLPerf's only its name is refused."""
    checker = pytest.importorskip(
        "mlperf_logging.compliance_checker.mlp_compliance", reason="mlcommons' checker is not there (mlperf-logging)"
    )
    run = make_run()
    workload = replace(run.point.workload, dataset="imagenet", model="resnet50")
    resnet = replace(run, point=replace(run.point, workload=workload))
    assert complaints(checker, resnet, tmp_path) == []
    unknown, missing = complaints(checker, run, tmp_path)
    assert unknown.startswith("CHECK for 'submission_benchmark' failed")
    assert missing.startswith("Could not find config file") and missing.endswith("open_mnist-dnn.yaml")


def complaints(checker: Any, run: RunRecord, tmp_path: Path) -> list[str]:
    """Return what the checker has against the lines of `run`; it has no rules for names that it does not know."""
    path = tmp_path / "result_0.txt"
    path.write_text(mllog(run, Submitter(organisation="us")))
    found = checker.ComplianceChecker("training", "4.0.0", quiet=True, werror=False)
    with contextlib.suppress(FileNotFoundError):
        found.check_file(str(path), "training_4.0.0/common.yaml")
    return [*found.warnings.values(), *found.overwritable.values(), *found.not_overwritable]
