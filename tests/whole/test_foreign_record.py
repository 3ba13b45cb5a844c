"""A stranger's record is data: what reads it imports and starts nothing that it names, and leaves no folder."""

import importlib.abc
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from harness.__main__ import run_command_line
from harness.analysis.launch_frames import launch_frame
from harness.analysis.read_results import load_sweep
from harness.analysis.scaling import scale
from harness.base.files import resource
from harness.claims.claim_evidence import gather
from harness.claims.measures import computation_and_exchange, loss_difference
from harness.prediction.extrapolation import extrapolate
from harness.report.answer import Answer
from harness.report.html_pages import write_page
from harness.schema.claim import CLAIMS_FILE, read_published
from harness.schema.layout import Layout
from harness.schema.record import decode, encode, read_run
from harness.schema.sweep import Skipped, Study
from harness.schema.sweep_folder import SweepFolder
from tests.labs.factories import make_launch, write_run, write_study
from tests.labs.sentences import refuses, says

SWEEP = Path(__file__).parents[1] / "data" / "mnist-dnn-6x2"
OWN = {"sync": "evil:Policy", "model": "evil:network", "optimizer": "evil:optimizer"}
ROOTS = tuple(Path(root).resolve() for root in (sys.prefix, sys.base_prefix, Path(__file__).parents[2] / "harness"))


class Witness(importlib.abc.MetaPathFinder):
    """Notes which modules are looked for."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        self.names.add(fullname)
        return None


def strangers(names: set[str]) -> list[str]:
    """Return those modules of `names` that are not of the harness, of what it depends on, or of Python."""
    found = []
    for name in sorted(names):
        file = getattr(sys.modules.get(name), "__file__", None)
        of_us = file is None or any(Path(file).resolve().is_relative_to(root) for root in ROOTS)
        if name.partition(".")[0] == "evil" or not of_us:
            found.append(name)
    return found


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[Witness]:
    """Note every import of the test."""
    witness = Witness()
    monkeypatch.setattr(sys, "meta_path", [witness, *sys.meta_path])
    yield witness


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note every child process of the test."""
    lines: list[str] = []
    real = subprocess.Popen.__init__

    def noted(self: object, words: object, *arguments: object, **options: object) -> None:
        lines.append(str(words))
        real(self, words, *arguments, **options)  # type: ignore[arg-type, call-overload]

    monkeypatch.setattr(subprocess.Popen, "__init__", noted)
    return lines


def foreign_sweep(results: Path, name: str, days: int = 0, **settings: object) -> Path:
    """Write real records below `results` whose workload has `settings`, so many `days` later, as a stranger may."""
    folder = results / name
    shutil.copytree(SWEEP, folder)
    files = SweepFolder(folder)
    study = decode(files.study.read_bytes(), Study, files.study)
    workload = replace(study.sweep.workload, **settings)  # type: ignore[arg-type]
    sweep = replace(study.sweep, workload=workload)
    skipped = (Skipped(layout=Layout(nodes=4), reason="too few cores"),)
    files.study.write_bytes(encode(replace(study, sweep=sweep, skipped=skipped)))
    for launch in list(files.records()):
        run = read_run(launch)
        point = replace(run.point, workload=replace(run.point.workload, **settings))  # type: ignore[arg-type]
        later = timedelta(days=days)
        run = replace(run, point=point, started=run.started + later, ended=run.ended + later)
        (launch / "run.json").write_bytes(encode(run))
        launch.rename(folder / point.folder)
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder with four foreign sweeps and the module that they name, which says that it ran."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    foreign_sweep(tmp_path / "results", "evil", **OWN)
    own_data = {"dataset": "file", "data": "auto", "data_file": str(tmp_path / "evil.csv")}
    foreign_sweep(tmp_path / "results", "other", **OWN, **own_data, epochs=2)
    foreign_sweep(tmp_path / "results", "again", days=2, **OWN)
    foreign_sweep(tmp_path / "results", "later", days=1, **OWN | {"sync": "evil:Other"})
    return tmp_path


@pytest.mark.slow
def test_no_command_that_reads_records_imports_or_starts_what_they_name(
    place: Path, imports: Witness, started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    launch = next(SweepFolder(place / "results" / "evil").records())
    commands = (
        ("status", "evil"),
        ("report", "evil"),
        ("report", "other"),
        ("compare", "evil", "later"),
        ("policies", "evil", "later"),
        ("explain", "evil"),
        ("trace", str(launch)),
        ("predict", "--workload", "mnist-network", "--network", "2e-6,1e-10"),
        ("baseline", "save", "mine", "evil"),
        ("check", "again", "--against", "mine"),
        ("history", "evil"),
        ("claims",),
        ("bundle", "evil", "other", "--output", "evil.tar.gz"),
        ("bundle", "verify", "evil.tar.gz"),
        ("bundle", "redraw", "evil.tar.gz", "--reports", "again"),
    )
    codes = {" ".join(words[:2]): run_command_line(list(words)) for words in commands}
    said = capsys.readouterr()
    assert set(codes.values()) <= {0, 2, 3}, codes
    # Own code is not predicted; all else is read to its end.
    assert [name for name, code in codes.items() if code == 2] == ["predict --workload"], said.err
    assert strangers(imports.names) == []
    assert [line for line in started if "evil:" in line or "evil.py" in line] == []
    assert not (place / "ran").exists()


def test_a_policy_of_the_users_own_is_not_predicted_and_supports_no_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imports: Witness
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('code of a record ran')\n")
    for ranks in (1, 2):
        for repeat in range(3):
            run = make_launch(ranks, repeat, 4.0 / ranks)
            point = replace(run.point, workload=replace(run.point.workload, sync="evil:Policy"))
            write_run(tmp_path / "s", replace(run, point=point))
    write_study(tmp_path / "s", sync="evil:Policy", skipped=(Skipped(layout=Layout(nodes=4), reason="few cores"),))
    loaded = load_sweep(tmp_path / "s")
    scaling = scale(launch_frame(loaded.runs, loaded.epochs))
    assert scaling is not None
    predicted, why_not = extrapolate(loaded, scaling, [Layout(nodes=4)])
    assert predicted == ()
    says(why_not, "policy is the user's")
    claim = read_published(resource(CLAIMS_FILE)).claims[0]
    for rule in (computation_and_exchange, loss_difference):
        assert all(way.missing for way in rule(claim, gather([tmp_path / "s"])))
    assert strangers(imports.names) == []


def test_a_page_is_never_written_beside_the_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    public = tmp_path / "public_html"
    public.mkdir()
    (public / "index.html").write_text("mine")
    foreign_sweep(tmp_path / "results", "evil")
    for file in (tmp_path / "results").rglob("*.json"):
        record = json.loads(file.read_text())
        workload = record.get("point", record.get("sweep", {})).get("workload")
        if workload:
            workload["preset"] = "x/../../../public_html"
            file.write_text(json.dumps(record))
    assert run_command_line(["history", "evil"]) == 2
    assert run_command_line(["report", "evil"]) == 0  # of 13 files that are left out, and named
    assert [path.name for path in public.iterdir()] == ["index.html"]
    assert (public / "index.html").read_text() == "mine"
    for place in ("../public_html", "x/../../public_html", "/etc", ""):
        answer = Answer(sentence="", kind="page", place=place, title="a page")
        with refuses("use a name without", place):
            write_page(answer, tmp_path / "reports")
