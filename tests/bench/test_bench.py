"""The bench's ratios over synthetic blocks, its choice of contenders, its page and its old records."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.confidence_intervals import FEWEST_BLOCKS
from harness.base.first_epoch import FIRST_EPOCH, note_first_epoch
from harness.bench.bench_record import (
    RECORD,
    BenchBlock,
    block_ratios,
    contender_ratio,
    paired_rates,
    read_bench,
    tabulate,
)
from harness.bench.bench_runner import BenchSettings, FirstEpoch, SetMaker, split
from harness.bench.contenders import BATCH_PER_RANK, CONTENDERS, Contender, Task, choose_contenders
from harness.report.answer import Table
from harness.report.bench_answer import TEXT, bench_answer
from harness.report.html_pages import write_page
from harness.schema.claim import EXPERIMENTS
from tests.labs.bench_records import bench_block, bench_record
from tests.labs.sentences import refuses, says


def test_ratios_are_formed_within_rounds() -> None:
    """The machine is ten times as slow in one round: the ratio stays, that of the medians would not."""
    one = bench_block(bare=(1.0, 10.0, 1.2, None), gradients=(2.0, 20.0, 2.4, 0.1))
    (ratio,) = block_ratios([one], "gradients", "bare")
    assert np.exp(ratio) == pytest.approx(0.5)


def test_rows_per_second_count_the_ranks() -> None:
    one = bench_block(bare_1=(1.0,), bare=(1.25,))
    (ratio,) = block_ratios([one], "bare", "bare-1")
    assert np.exp(ratio) == pytest.approx(2 / 1.25)
    assert tabulate(bench_record(one))[0].rates == {"bare-1": BATCH_PER_RANK, "bare": 2 * BATCH_PER_RANK / 1.25}


def test_fewer_than_three_blocks_have_no_interval_and_no_verdict() -> None:
    made = [bench_block(number, bound=(1.0,), gradients=(0.9,)) for number in range(FEWEST_BLOCKS)]
    few, enough = contender_ratio(made[:-1], "gradients", "bound"), contender_ratio(made, "gradients", "bound")
    assert few and (few.interval, few.met, few.blocks) == (None, None, 2)
    assert enough and enough.interval and enough.met is True


def planted(generator: np.random.Generator, ratio: float, count: int) -> list[BenchBlock]:
    """Return blocks whose starts differ by 0.8 %, rounds by 2 %, and in which the machine moves by 30 %."""
    made = []
    for number in range(count):
        speed = np.exp(generator.normal(0, 0.3, 40))
        starts = np.exp(generator.normal(0, 0.008, 2))
        bare, none = (start * speed * np.exp(generator.normal(0, 0.02, 40)) for start in starts)
        made.append(bench_block(number, bare=tuple(bare), none=tuple(none / ratio)))
    return made


def test_the_interval_holds_the_planted_ratio_in_nineteen_of_twenty_benches() -> None:
    generator, held, widths = np.random.default_rng(7), 0, []
    for _ in range(200):
        found = contender_ratio(planted(generator, 0.95, 6), "none", "bare")
        assert found and found.interval
        held += found.interval.low <= 0.95 <= found.interval.high
        widths.append(found.interval.high - found.interval.low)
    assert 183 <= held <= 197  # 190 expected
    assert np.median(widths) < 0.03


@pytest.mark.parametrize(("step", "met"), [(0.9, True), (1.1, False)])
def test_a_goal_is_met_or_missed_by_the_whole_interval(step: float, met: bool) -> None:
    made = [bench_block(number, bound=(1.0,), gradients=(step * (1 + 0.01 * number),)) for number in range(3)]
    assert tabulate(bench_record(*made))[0].ratios["gradients"]["bound"].met is met
    wide = [bench_block(number, bound=(1.0,), gradients=(0.8 + 0.2 * number,)) for number in range(3)]
    assert tabulate(bench_record(*wide))[0].ratios["gradients"]["bound"].met is None
    assert tabulate(bench_record(*made, forced=True))[0].ratios["gradients"]["bound"].met is None


def test_two_contenders_are_paired_by_block_and_not_from_a_forced_bench() -> None:
    made = (bench_block(gradients=(0.5, 0.5), none=(0.4, 0.4)), bench_block(1, gradients=(0.5,)))
    assert paired_rates(bench_record(*made), slow="gradients", fast="none") == [
        {"workload": "mnist-dnn", "slow": pytest.approx(256), "fast": pytest.approx(320)}
    ]
    assert paired_rates(bench_record(*made, forced=True), slow="gradients", fast="none") == []


@pytest.mark.parametrize("workload", sorted(EXPERIMENTS))
def test_two_ranks_make_whole_batches_only(workload: str) -> None:
    task = BenchSettings(workloads=(workload,)).task(workload)
    assert task.rows > 0 and task.rows % (2 * BATCH_PER_RANK) == 0
    assert task.workload(sync="none").name == workload


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        (
            {"workloads": ("mnist-dmn",)},
            ("higgs-dnn", "mnist-dnn"),
        ),
        (
            {"blocks": 0},
            ("BLOCKS=0",),
        ),
        (
            {"pythons": {"horovod": "/nowhere/python"}},
            ("is not a program", "/nowhere/python"),
        ),
    ],
)
def test_bad_settings_are_named(settings: dict[str, object], refusal: str) -> None:
    with refuses(*refusal):
        BenchSettings(**settings)  # type: ignore[arg-type]


def test_blocks_go_on_until_the_minutes_are_spent() -> None:
    whole = BenchSettings()
    assert whole.goes_on(2, 1e6) and not whole.goes_on(3, 1e6)  # three are needed, however long
    assert whole.goes_on(4, 700.0) and not whole.goes_on(4, 740.0)  # a fifth takes 175 s, 185 s
    assert not BenchSettings(blocks=1).goes_on(1, 0.0)
    assert set(whole.names) == set(EXPERIMENTS)


def test_who_cannot_take_part_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.bench.contenders.find_spec", lambda name: None)
    chosen, left_out = choose_contenders((), {"horovod": "/peers/bin/python"}, 2)
    assert {one.name for one in chosen} == set(CONTENDERS) - {"ddp"}
    assert next(one for one in chosen if one.name == "horovod").python == "/peers/bin/python"
    says(left_out["ddp"], "torch", "TORCH_PYTHON=")
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


def test_every_block_has_the_bare_loop_where_memory_does_not_hold_all() -> None:
    every: list[Contender] = list(CONTENDERS.values())
    assert split(every, 2**40) == [sorted(every, key=lambda one: one.name not in ("bare-1", "bare", "bound"))]
    parts = split(every, 6 * 2**30)
    assert len(parts) > 1
    for part in parts:
        assert {"bare-1", "bare", "bound"} < {one.name for one in part}
    others = [one.name for part in parts for one in part if one.name not in ("bare-1", "bare", "bound")]
    assert sorted(others) == sorted(set(CONTENDERS) - {"bare-1", "bare", "bound"})


def test_the_first_epoch_of_a_contender_is_read_from_what_it_has_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = SetMaker(task=Task(dataset="mnist", model="dnn", rows=512), folder=tmp_path, python="python")
    contender = CONTENDERS["ddp"]
    assert maker.first_epoch(contender) is None
    note_first_epoch(0.5)  # where nobody asks, nothing is written
    monkeypatch.setenv(FIRST_EPOCH, str(tmp_path / "ddp-first-epoch.json"))
    note_first_epoch(0.25, "PyTorch 2")
    assert maker.first_epoch(contender) == FirstEpoch(train_loss=0.25, versions="PyTorch 2")


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


def test_page_table_and_record_are_written(tmp_path: Path) -> None:
    made = [
        replace(
            bench_block(number, bare=(1.0, 1.1), bound=(1.5, 1.6), gradients=(2.0, 2.1), none=(1.05, 1.1)),
            losses={"bare": 0.25},
            failed={"mwms": "RuntimeError: a | b"},
            details={"Horovod, 2 ranks": "Horovod 0.28.1"},
        )
        for number in range(3)
    ]
    answer = bench_answer(bench_record(*made))
    folder = write_page(answer, tmp_path).page.parent
    page = (folder / TEXT).read_text()
    says((folder / "index.html").read_text(), "How fast")
    says(answer.sentence, "harness gradients", "2 ranks", "0.756", "(0.75")
    assert answer.sentence.startswith("mnist-dnn: ")
    assert read_bench(folder / RECORD).blocks == tuple(made)
    for words in ("0.756 NO (0.756 to 0.756)", "failed", "0.2500", "RuntimeError: a \\| b", "Horovod 0.28.1"):
        assert words in page.replace("RuntimeError: a | b", "RuntimeError: a \\| b"), words
    ratio = answer.data["workloads"][0].ratios["gradients"]["bound"]
    assert (ratio.blocks, ratio.met) == (3, False)


def test_chosen_contenders_have_only_tables_and_headlines_of_their_own() -> None:
    """A bench of some contenders has no empty table, and its first sentence compares those that it has."""
    made = [bench_block(number, bare=(1.0, 1.1), run=(1.25, 1.375)) for number in range(3)]
    answer = bench_answer(bench_record(*made, contenders=("bare", "run")))
    assert [(fact.name, fact.value) for fact in answer.tiles] == [
        (f"{CONTENDERS['run'].title} over a bare loop", "0.800")
    ]
    tables = [element for section in answer.sections for element in section.elements if isinstance(element, Table)]
    assert tables and all(table.rows for table in tables)


def test_a_bench_by_launches_must_be_measured_again(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text(json.dumps({"schema": 1, "samples": []}))
    with refuses("BenchRecord"):
        read_bench(tmp_path / RECORD)


def test_the_paper_has_seven_workloads() -> None:
    assert set(EXPERIMENTS) == {
        *("adult-dnn", "acoustic-dnn", "mnist-dnn", "mnist-cnn", "cifar10-dnn", "cifar10-cnn", "higgs-dnn")
    }
