"""The bench's plan, statistics, page and bookkeeping, with contenders that are told how fast to be."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.errors import RunError, UserError
from harness.base.provenance import Machine
from harness.bench import ratios, rounds
from harness.bench.bench_record import (
    BATCH_PER_RANK,
    MIN_TIMED_EPOCHS,
    RECORD,
    SCHEMA,
    BenchRecord,
    Contender,
    ContenderOutput,
    ContenderSample,
    Task,
    Timing,
)
from harness.bench.contenders import CONTENDERS, choose_contenders
from harness.bench.launches import combine_answers
from harness.bench.rounds import BenchSettings, correct_epochs, fit_epochs, guess_epochs, shuffled
from harness.report.bench_page import TABLE, TEXT, bench_answer
from harness.report.publish import write_page
from harness.schema.claim import EXPERIMENTS
from harness.schema.presets import resolve
from harness.schema.record import decode

MACHINE = Machine(hostname="node1", cpu="Example", cores=2, memory_bytes=2**34, gpus=(), os="Linux 6", fingerprint="f")


def sample(contender: str, number: int, krows: float, **changes: object) -> ContenderSample:
    return replace(
        ContenderSample(
            workload="mnist-dnn",
            contender=contender,
            round=number,
            rows=12_800,
            started=datetime(2026, 1, 5, tzinfo=UTC),
            wall_s=8.0,
            other_load=0.0,
            seconds=(12.8 / krows,) * 3,
        ),
        **changes,
    )


def record(*samples: ContenderSample, **changes: object) -> BenchRecord:
    settings: dict[str, object] = {"workloads": ("mnist-dnn",), "rounds": 3, "forced": False, "quick": False}
    return BenchRecord(
        schema=SCHEMA,
        started=datetime(2026, 1, 5, 12, 30, tzinfo=UTC),
        machine=MACHINE,
        versions={"harness": "0.1.0", "openmpi": ""},
        commit="0123456789abcdef",
        dirty=False,
        seed=0,
        samples=samples,
        **(settings | changes),  # type: ignore[arg-type]
    )


@given(st.integers(0, 50), st.sampled_from(sorted(EXPERIMENTS)))
def test_every_round_launches_every_contender_once(number: int, workload: str) -> None:
    order = shuffled(CONTENDERS, seed=0, workload=workload, number=number)
    assert sorted(order) == sorted(CONTENDERS)
    assert order == shuffled(CONTENDERS, seed=0, workload=workload, number=number)


def test_the_order_changes_from_round_to_round() -> None:
    orders = {tuple(shuffled(CONTENDERS, seed=0, workload="mnist-dnn", number=number)) for number in range(20)}
    assert len(orders) > 10


@given(st.floats(2.5e-3, 100))
def test_epochs_fill_the_time(epoch_s: float) -> None:
    epochs = fit_epochs(epoch_s)
    assert epochs >= MIN_TIMED_EPOCHS
    assert epochs * epoch_s >= 2.5 - 1e-9
    assert epochs == MIN_TIMED_EPOCHS or (epochs - 1) * epoch_s < 2.5
    assert correct_epochs([epoch_s] * epochs) is None


def test_far_too_short_and_long_launches_are_corrected() -> None:
    assert correct_epochs([0.1] * 3) == 25
    assert correct_epochs([1e-5] * 3) == 1000 and correct_epochs([1e-5] * 1000) is None
    assert correct_epochs([1.0] * 20) == 3
    assert correct_epochs([9.0] * 3) is None  # slow, but already the fewest epochs
    assert correct_epochs([0.5] * 3) is None


@pytest.mark.parametrize("workload", sorted(EXPERIMENTS))
def test_two_ranks_make_whole_batches_only(workload: str) -> None:
    quick = BenchSettings(workloads=(workload,), quick=True)
    for settings in (BenchSettings(workloads=(workload,)), BenchSettings(workloads=(workload,), rows=1000), quick):
        task = settings.task(workload)
        assert task.rows % (2 * BATCH_PER_RANK) == 0
        assert 0 < task.rows <= (settings.rows or task.rows)
        assert guess_epochs(task, ranks=2, fast=False) == MIN_TIMED_EPOCHS
        assert task.workload(sync="none").name == workload


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workloads": ("mnist-dmn",)}, "did you mean 'mnist-dnn'"),
        ({"workloads": ("mnist-dnn",), "rounds": 0}, "ROUNDS=0"),
        ({"workloads": ("mnist-dnn",), "rows": 100}, "ROWS=100"),
        ({"workloads": ("mnist-dnn",), "limit_s": 0}, "limit 0 s"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        BenchSettings(**settings)  # type: ignore[arg-type]


def test_an_epoch_lasts_as_long_as_its_slowest_process() -> None:
    answers = [ContenderOutput(seconds=(9.0, *seconds)) for seconds in ((1.0, 5.0, 2.0), (3.0, 4.0, 2.0))]
    assert combine_answers(answers).seconds == (3.0, 5.0, 2.0)


def test_rates_are_medians_with_their_range() -> None:
    line = ratios.tabulate(record(*(sample("ours-1", number, rate) for number, rate in enumerate((90, 240, 100)))))[0]
    cell = line.rates["ours-1"]
    assert (cell.count, round(cell.middle), round(cell.low), round(cell.high)) == (3, 100, 90, 240)
    assert "mwms" not in line.rates


def test_ratios_are_formed_within_a_round() -> None:
    """The machine is twice as slow in round 1: the ratio stays 4, the ratio of the medians would not."""
    rates = {"ours-1": (400, 200, 440), "keras-fit": (100, 50, 44)}
    samples = [sample(name, number, rate) for name, row in rates.items() for number, rate in enumerate(row)]
    line = ratios.tabulate(record(*samples))[0]
    assert [round(value, 6) for value in (line.ratios[0].middle, line.ratios[0].low, line.ratios[0].high)] == [4, 4, 10]
    assert line.met[0] is True
    assert set(line.met[1:]) == {None}


def test_two_contenders_are_paired_by_round_and_not_from_a_quick_bench() -> None:
    samples = [sample("gradients", 0, 200), sample("none", 0, 250), sample("gradients", 1, 210)]
    assert ratios.paired_rates(record(*samples), slow="gradients", fast="none") == [
        {"workload": "mnist-dnn", "slow": pytest.approx(200), "fast": pytest.approx(250)}
    ]
    assert ratios.paired_rates(record(*samples, quick=True), slow="gradients", fast="none") == []


def test_a_round_without_one_of_the_two_gives_no_ratio() -> None:
    line = ratios.tabulate(record(sample("ours-1", 0, 400), sample("keras-fit", 1, 100)))[0]
    assert line.ratios[0].count == 0


def test_the_bound_is_a_bare_step_and_then_the_sums() -> None:
    """12,800 rows in 100 steps: 1 ms a step, 0.25 ms a sum; a step of 1.3 ms reaches 1.25 / 1.3 of the bound."""
    parts = [sample("bare", 0, 128.0), sample("raw-sums", 0, 512.0), sample("gradients", 0, 12.8 / 0.13)]
    line = ratios.tabulate(record(*parts))[0]
    assert line.rates[ratios.BOUND].middle == pytest.approx(12.8 / 0.125)
    titles = [ratio.title for ratio in ratios.RATIOS]
    ratio = titles.index("gradients / bound, 2 ranks")
    assert line.ratios[ratio].middle == pytest.approx(1.25 / 1.3)
    assert line.met[ratio] is False
    assert ratios.BOUND not in ratios.tabulate(record(*parts[:1]))[0].rates


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_is_shipped_differs_from_plain_descent_in_what_the_bare_loop_is_told(name: str) -> None:
    plain = BenchSettings(workloads=(name,)).task(name)
    shipped = replace(plain, shipped=True).workload()
    differing = {
        field.name for field in fields(shipped) if getattr(shipped, field.name) != getattr(plain.workload(), field.name)
    }
    assert differing <= {"optimizer", "learning_rate", "schedule", "weight_decay", "augment"}
    assert shipped == resolve(
        dataset=plain.dataset,
        model=plain.model,
        drop_remainder=True,
        epochs=4,
        samples=plain.rows,
        seed=0,
        data="synthetic",
    )


def test_recording_is_a_part_of_the_step() -> None:
    """12,800 rows in 100 steps of 1 ms, 20 us of which are recorded with: 2 %, more than is allowed."""
    line = ratios.tabulate(record(sample("gradients", 0, 128.0), sample("recording", 0, 6400.0)))[0]
    ratio = [ratio.title for ratio in ratios.RATIOS].index("gradients / without recording")
    assert line.ratios[ratio].middle == pytest.approx(0.98)
    assert line.met[ratio] is False


def test_the_loss_of_what_is_trained_stands_beside_its_speed() -> None:
    """The times of one launch are in doubt, its loss is not."""
    samples = [sample("gradients", number, 100, loss=loss) for number, loss in enumerate((0.5, 0.3))]
    line = ratios.tabulate(record(*samples, sample("gradients", 2, 100, loss=0.4, invalid=("busy",))))[0]
    assert line.losses["gradients"].middle == pytest.approx(0.4)
    assert "raw-sums" not in line.losses


def test_an_absent_package_costs_no_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.bench.contenders.find_spec", lambda name: None)
    chosen = {
        contender.name: contender for contender in choose_contenders(CONTENDERS, (), {"horovod": "/peers/bin/python"})
    }
    assert set(CONTENDERS) - set(chosen) == {"ddp"}
    assert chosen["horovod"].python == "/peers/bin/python"
    assert ratios.tabulate(record(sample("ours-1", 0, 100)))[0].rates.keys() == {"ours-1"}
    assert ratios.tabulate(record(sample("ddp", 0, 100)))[0].rates["ddp"].count == 1


def test_a_python_by_its_bare_name_is_the_one_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mpirun beside it starts its ranks."""
    program = tmp_path / "horovods-python"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (chosen,) = choose_contenders(CONTENDERS, ("horovod",), {"horovod": "horovods-python"})
    assert chosen.python == str(program)


def test_a_python_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="Python of horovod, '/nowhere/python', is not a program: give one that has"):
        BenchSettings(workloads=("adult-dnn",), pythons={"horovod": "/nowhere/python"})


def test_the_papers_networks_can_be_told_to_who_has_no_keras() -> None:
    from harness.bench.contenders.script import build_network, describe_layer

    tasks = [Task(dataset="mnist", model=model, rows=512, epochs=3) for model in ("dnn", "cnn")]
    dnn, cnn = ([describe_layer(layer) for layer in build_network(task).layers] for task in tasks)
    dense = [{"kind": "dense", "units": units, "activation": "sigmoid"} for units in (200, 100)]
    assert dnn == [{"kind": "flatten"}, *dense, {"kind": "dense", "units": 10, "activation": "linear"}]
    assert cnn[:2] == [
        {"kind": "convolution", "units": 32, "size": 5, "activation": "relu"},
        {"kind": "pooling", "size": 2},
    ]


def test_failed_invalid_and_calibration_launches_are_left_out() -> None:
    bad = (
        sample("ours-1", 0, 1, invalid=("busy",)),
        sample("ours-1", 1, 1, failed="it broke", seconds=()),
        sample("ours-1", 2, 1, calibration=True),
    )
    cell = ratios.tabulate(record(*bad, sample("ours-1", 2, 100)))[0].rates["ours-1"]
    assert (cell.count, round(cell.middle), cell.note) == (1, 100, "busy")
    forced = ratios.tabulate(record(*bad, sample("ours-1", 2, 100), forced=True))[0]
    assert (forced.rates["ours-1"].count, forced.rates["ours-1"].note) == (2, "it broke")


@pytest.mark.parametrize("changes", [{"forced": True}, {"quick": True}])
def test_quick_and_forced_benches_judge_nothing(changes: dict[str, object]) -> None:
    slow = (sample("ours-1", 0, 100), sample("keras-fit", 0, 100))
    assert ratios.tabulate(record(*slow))[0].met[0] is False
    assert ratios.tabulate(record(*slow, **changes))[0].met[0] is None


def test_page_table_and_record_are_written(tmp_path: Path) -> None:
    samples = (
        sample("ours-1", 0, 250, loss=0.25, details={"reduction": "bridge"}),
        sample("keras-fit", 0, 100),
        sample("mwms", 0, 1, failed="RuntimeError: a | b", seconds=()),
        sample("none", 0, 300, invalid=("other processes kept 1.0 cores busy",)),
    )
    folder = write_page(bench_answer(record(*samples)), tmp_path).page.parent
    page = (folder / TEXT).read_text()
    shown = (folder / "index.html").read_text()
    assert "How fast is the harness beside Keras" in shown and "CONTENDERS=keras-fit,ours-1,mwms,none" in shown
    assert decode((folder / RECORD).read_bytes(), BenchRecord, tmp_path).samples == samples
    assert "node1: Example, 2 cores, 16 GiB, Linux 6" in page
    assert "2026-01-05 12:30 UTC, commit 0123456789ab\n" in page
    assert "1 of 3 rounds" in page
    assert "reduction: bridge" in page
    assert "**2.50 (2.50-2.50) NO**" in page
    assert "0.2500" in page
    assert "failed: RuntimeError: a \\| b" in page
    assert "ours none, 2 ranks, round 1 left out: other processes kept 1.0 cores busy" in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len({(len(line), line.count(" | ")) for line in rows[:3:2]}) == 1
    cells = list(csv.DictReader(io.StringIO((folder / TABLE).read_text())))
    ratio = next(cell for cell in cells if cell["quantity"] == "ours-1/keras-fit")
    assert (ratio["median"], ratio["required"], ratio["met"]) == ("2.5", "3", "no")
    assert next(cell for cell in cells if cell["quantity"] == "mwms")["note"] == "RuntimeError: a | b"


@dataclass
class Told:
    """A contender that answers as it is told and remembers what it was asked."""

    name: str
    epoch_s: float
    ranks: int = 1
    fast: bool = False
    package: str = ""
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.title = self.name
        self.asked: list[int] = []

    def launch(self, task: Task, *, limit_s: int) -> Timing:
        self.asked.append(task.epochs)
        if self.error:
            raise self.error
        return Timing(seconds=(self.epoch_s,) * task.epochs)


Bench = Callable[..., list[BenchRecord]]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Bench:
    """Return a function that runs a bench of the given contenders on a machine that is quiet."""

    def run(*contenders: Contender, load: float = 0.0, **settings: object) -> list[BenchRecord]:
        monkeypatch.setattr(rounds, "CONTENDERS", {contender.name: contender for contender in contenders})
        monkeypatch.setattr(rounds, "wait_until_quiet", lambda say, *, force: 0.0)
        monkeypatch.setattr(rounds, "other_load", lambda begin, end: load)
        asked = BenchSettings(workloads=("adult-dnn",), rows=256, **settings)  # type: ignore[arg-type]
        return list(rounds.run_bench(asked, lambda line: None))

    return run


def test_epochs_are_found_once_and_kept(bench: Bench) -> None:
    short, right = Told(name="short", epoch_s=0.01), Told(name="right", epoch_s=1.0)
    records = bench(short, right, rounds=3)
    assert short.asked == [3, 250, 250, 250]
    assert right.asked == [3, 3, 3]
    assert [len(entry.samples) for entry in records] == [3, 5, 7]
    assert [entry.calibration for entry in records[-1].samples if entry.contender == "short"] == [True] + [False] * 3


def test_a_quick_bench_launches_each_contender_once(bench: Bench) -> None:
    short = Told(name="short", epoch_s=0.01)
    bench(short, rounds=1, quick=True)
    assert short.asked == [MIN_TIMED_EPOCHS]


@pytest.mark.parametrize("error", [RunError("it broke"), UserError("no mpirun")])
def test_a_contender_that_fails_does_not_end_the_bench(bench: Bench, error: Exception) -> None:
    broken, good = Told(name="broken", epoch_s=1.0, error=error), Told(name="good", epoch_s=1.0)
    samples = bench(broken, good, rounds=4)[-1].samples
    assert len(broken.asked) == 2  # then it is given up
    assert [entry.failed for entry in samples if entry.contender == "broken"].count(str(error)) == 2
    assert all(entry.failed for entry in samples if entry.contender == "broken")
    assert sum(entry.counts(forced=False) for entry in samples) == 4


def test_some_contenders_can_be_chosen(bench: Bench) -> None:
    one, other = Told(name="one", epoch_s=1.0), Told(name="other", epoch_s=1.0)
    (found,) = bench(one, other, rounds=1, contenders=("other",))
    assert [entry.contender for entry in found.samples] == ["other"]
    with pytest.raises(UserError, match=r"CONTENDERS 'othe': did you mean 'other'"):
        bench(one, other, rounds=1, contenders=("othe",))


def test_times_under_other_load_do_not_count(bench: Bench) -> None:
    samples = bench(Told(name="one", epoch_s=1.0), rounds=1, load=1.5)[-1].samples
    assert samples[0].invalid == ("other processes kept 1.5 cores busy",)
    assert not samples[0].counts(forced=False)
    assert samples[0].counts(forced=True)


def test_the_paper_has_seven_workloads() -> None:
    assert set(EXPERIMENTS) == {
        *("adult-dnn", "acoustic-dnn", "mnist-dnn", "mnist-cnn", "cifar10-dnn", "cifar10-cnn", "higgs-dnn")
    }
