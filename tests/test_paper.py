"""Published claims: every number is in the ledger, and none gets a verdict without a run on its own base."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.analysis.frames import launch_frame
from harness.base.errors import RunError, UserError
from harness.base.files import resource
from harness.claims import verdict as verdicts
from harness.claims.experiments import plan, rank_counts
from harness.claims.verdict import judge
from harness.claims.wording import published as published_words
from harness.claims.wording import verdict as verdict_words
from harness.report.claims_page import Repeated, write_paper
from harness.schema.claim import CLAIMS_FILE, EXPERIMENTS, Claim, Published, read_published
from harness.schema.sweep import Sweep
from tests.factories import make_launch, make_point, make_run, write_run
from tests.test_report import Text

# (experiment, base, count, value): what paper A states, and where it only shows a chart (None).
PAPER_A = [
    ("mnist-dnn", 1, 32, 11.6),
    ("mnist-cnn", 16, 64, 1.92),
    ("adult-dnn", 5, 40, None),
    ("acoustic-dnn", 1, 40, None),
    ("cifar10-dnn", 16, 64, 3.37),
    ("cifar10-dnn", 16, 16, 2.97),
    ("cifar10-dnn", 0, 64, 0.55),
    ("cifar10-cnn", 4, 64, None),
    ("higgs-dnn", 20, 80, 2.6),
]
PAPER_B = {
    "AlexNet": ([1.94, 3.40, 6.32, 10.9], [1.37, 1.93]),
    "GoogLeNet": ([1.84, 3.57, 7.25, 14.7], [1.87, 3.21]),
    "InceptionV3": ([1.87, 3.57, 7.29, 14.5], [1.70, 2.77]),
    "ResNet-50": ([1.84, 3.61, 7.60, 15.3], [1.69, 2.67]),
}


@pytest.fixture(scope="module")
def published() -> Published:
    return read_published(resource(CLAIMS_FILE))


def claim(value: float | None = 1.9, *, base: int = 1, count: int = 2, **changes: object) -> Claim:
    plain = Claim(
        paper="A", figure="1", experiment="mnist-dnn", units="cores", base=base, count=count,
        value=value, kind="stated", text="t",
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def sweep_of(one: float, two: float, launches: int = 1) -> list:
    up = [1 + k / 100 for k in range(launches)]
    down = up[::-1]  # blocks that slow both points alike would leave the ratio no spread at all
    return [make_launch(1, k, one * s) for k, s in enumerate(up)] + [
        make_launch(2, k, two * s) for k, s in enumerate(down)
    ]


def test_ledger_holds_every_number_of_paper_a(published: Published) -> None:
    found = published.of("A")
    assert [(c.experiment, c.base, c.count, c.value) for c in found] == PAPER_A
    assert [c.figure for c in found] == ["1", "2", "3", "4", "5", "5", "5", "6", ""]
    assert all((c.kind == "chart") == (c.value is None) for c in found)
    efficiencies = [c.efficiency for c in found if c.efficiency and not c.erratum]
    assert [round(100 * e) for e in efficiencies] == [36, 48, 84, 65]
    assert [bool(c.erratum) for c in found].index(True) == 5


def test_ledger_holds_every_number_of_paper_b(published: Published) -> None:
    for network, (cpus, gpus) in PAPER_B.items():
        for units, counts, values in (("CPUs", (2, 4, 8, 16), cpus), ("GPUs", (2, 4), gpus)):
            found = [c for c in published.of("B", network) if c.units == units]
            assert [(c.count, c.value) for c in found] == list(zip(counts, values, strict=True))
            assert all(c.kind == "chart" and c.base == 1 and c.reading == 0.03 for c in found)


def test_a_damaged_ledger_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "published.toml"
    path.write_text("[[claim]]\npaper = 'A'\n")
    with pytest.raises(UserError, match="damaged"):
        read_published(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_published(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("asked", "one", "two", "launches", "expected"),
    [
        (claim(1.9), 2.0, 1.05, 6, verdicts.SAME),
        (claim(1.5), 2.0, 1.05, 6, verdicts.OTHER_SIZE),
        (claim(1.9), 2.0, 1.05, 5, verdicts.SIZE_OPEN),
        (claim(None, kind="chart"), 2.0, 1.05, 6, verdicts.SIZE_OPEN),
        (claim(1.9), 1.0, 1.05, 6, verdicts.OTHER_DIRECTION),
        (claim(11.6, count=32), 2.0, 1.05, 6, verdicts.NEEDS_CORES),
        (claim(1.92, base=16, count=64), 2.0, 1.05, 6, verdicts.NEEDS_CORES),
        (claim(2.97, erratum="impossible"), 2.0, 1.05, 6, verdicts.ERRATUM),
    ],
)
def test_a_claim_is_judged_on_its_own_base_or_not_at_all(
    asked: Claim, one: float, two: float, launches: int, expected: str
) -> None:
    judgement = judge(asked, launch_frame(sweep_of(one, two, launches)), real=True)
    assert judgement.verdict == expected
    assert (judgement.ours is not None) == (expected in verdicts.JUDGED)


def test_no_verdict_without_a_run() -> None:
    invalid = [make_launch(ranks, 0, 1.0, invalid=("load",)) for ranks in (1, 2)]
    assert judge(claim(), None, real=True).verdict == verdicts.NOT_RUN
    assert judge(claim(), launch_frame(invalid), real=True).verdict == verdicts.NOT_RUN


def test_an_accuracy_is_judged_on_real_data_only() -> None:
    asked = claim(0.9, base=0, count=2, quantity="accuracy")
    launches = launch_frame(sweep_of(2.0, 1.0))  # accuracy 93.3 %
    assert judge(asked, launches, real=False).verdict == verdicts.NEEDS_DATA
    assert judge(asked, launches, real=True).verdict == verdicts.SAME
    low = judge(replace(asked, value=0.95), launches, real=True)
    assert verdict_words(low).replace("\u00a0", " ") == "not reached: 93.3 %"


def test_words_of_claims_and_verdicts() -> None:
    assert published_words(claim(11.6, count=32)).replace("\u00a0", " ") == "11.6 (36 %)"
    assert published_words(claim(None, kind="chart")) == "chart without numbers"
    needs = judge(claim(11.6, count=32), launch_frame(sweep_of(2.0, 1.0)), real=True)
    assert verdict_words(needs) == "not measurable here: needs 32 cores"
    open_size = judge(claim(1.9), launch_frame(sweep_of(2.0, 1.0)), real=True)
    assert verdict_words(open_size) == "same direction: 2.00 here; size open, an interval needs 6 launches"


def test_page_sets_published_beside_ours_and_invents_nothing(tmp_path: Path, published: Published) -> None:
    folder = tmp_path / "results" / "mnist"
    for run in sweep_of(2.0, 1.25, 3):
        write_run(folder, run)
    entries = [
        Repeated(experiment=experiment.name, folder=None, problem="stopped") for experiment in EXPERIMENTS.values()
    ]
    entries[0] = Repeated(experiment="mnist-dnn", folder=folder)
    busy = make_run(make_point(1, dataset="higgs"), invalid=("other processes kept 1.5 of 2 cores busy",))
    write_run(tmp_path / "results" / "higgs", busy)
    entries[-1] = Repeated(experiment="higgs-dnn", folder=tmp_path / "results" / "higgs")
    path = write_paper(entries, published, tmp_path / "reports", "default")
    page = Text(path.read_text())
    text = str(page)
    assert page.loads == [] and len(page.ids) == len(set(page.ids))
    assert (
        "1 of 7 experiments gave valid times here on 1 to 2 cores. None of the paper's 9 claims can be judged" in text
    )
    assert "needs 32 cores" in text and "1.60 on 2 ranks over 1 rank" in text
    drawn = {file.stem for file in path.parent.glob("*.svg")}
    stated = {"published-mnist-dnn", "published-mnist-cnn", "published-cifar10-dnn", "published-higgs-dnn"}
    assert drawn == stated | {"ours-mnist-dnn"}
    for entry in published.claims:
        assert entry.text in text
    assert text.count("None are invented here") == 3 and text.count("Nothing: stopped.") == 5
    assert "none of its 1 launch is valid: other processes kept 1.5 of 2 cores busy" in text


def test_rank_counts_reach_all_cores_and_the_papers_counts(published: Published) -> None:
    claims = published.of("A")
    assert rank_counts(1, claims) == (1,)
    assert rank_counts(2, claims) == (1, 2)
    assert rank_counts(6, claims) == (1, 2, 4, 5, 6)
    assert rank_counts(64, claims) == (1, 2, 4, 5, 8, 16, 20, 32, 40, 64)


def test_the_seven_experiments_are_those_of_the_ledger(published: Published) -> None:
    assert set(EXPERIMENTS) == {c.experiment for c in published.of("A")} and len(EXPERIMENTS) == 7


def test_samples_never_exceed_the_real_rows(shared_data: Path, cache: Path) -> None:
    small = replace(EXPERIMENTS["higgs-dnn"], epochs=2)
    settings = {"nodes": (1, 2), "preset": "default", "repeats": 2, "epochs": None}
    real = plan(small, data_dir=shared_data, samples=None, **settings)  # type: ignore[arg-type]
    assert real.workload.samples is not None and 5000 < real.workload.samples < 10_000
    twin = plan(small, data_dir=None, samples=300, **settings)  # type: ignore[arg-type]
    assert (twin.workload.samples, twin.workload.epochs, twin.repeats) == (300, 2, 2)


def test_command_goes_on_after_a_failed_experiment(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.cli.paper import paper as command

    def run_sweep(sweep: Sweep, *, data_dir: Path | None, results: Path) -> Path:
        folder = results / sweep.name
        for point in sweep.points():
            write_run(folder, make_run(replace(point, workload=sweep.workload)))
        if sweep.workload.dataset == "adult":
            raise RunError("1 of 2 launches failed")
        return folder

    monkeypatch.setattr("harness.sweep.execute.run_sweep", run_sweep)
    two = {name: EXPERIMENTS[name] for name in ("adult-dnn", "acoustic-dnn")}
    monkeypatch.setattr("harness.schema.claim.EXPERIMENTS", two)
    where = ["--results", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
    result = CliRunner().invoke(command, ["--repeats", "1", "--nodes", "1", "--samples", "300", *where])
    assert isinstance(result.exception, RunError) and "adult-dnn" in str(result.exception)
    assert (tmp_path / "reports" / "claims" / "index.html").is_file()
    assert len(list((tmp_path / "reports").glob("*/index.html"))) == 3
    assert "1 of 2 launches failed" in (tmp_path / "reports" / "claims" / "index.html").read_text()


def test_a_wrong_setting_is_told_before_anything_runs(tmp_path: Path, cache: Path) -> None:
    from harness.cli.paper import paper as command

    arguments = ["--preset", "paper-2016", "--results", str(tmp_path / "results")]
    with pytest.raises(UserError, match="did you mean 'paper-2016-0"):
        CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert not (tmp_path / "results").exists()


def test_points_of_several_cores_per_rank_do_not_stand_for_cores() -> None:
    runs = []
    for ranks in (1, 2):
        point = make_point(ranks)
        runs.append(make_run(replace(point, layout=replace(point.layout, threads=2)), seconds=[[2.0 / ranks] * ranks]))
    assert judge(claim(1.9), launch_frame(runs), real=True).verdict == verdicts.NOT_RUN
