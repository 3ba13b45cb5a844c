"""What may be asked of a batch system: time limits by nodes, other directives, containers, a user's own sites."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.base.errors import UserError
from harness.cli import main
from harness.schema.layout import Layout
from harness.sweep.job_cost import time_limit
from harness.sweep.job_plan import Job
from harness.sweep.schedulers import exceeds
from harness.sweep.site import JobRequest, Partition, find_site
from tests.labs.factories import make_point
from tests.labs.sentences import refuses


def test_a_time_limit_may_depend_on_the_nodes() -> None:
    request = JobRequest(walltime="1:00:00,4=0:20:00,8=0:10:00")
    assert [request.limit_s(nodes) for nodes in (1, 3, 4, 7, 8, 64)] == [3600, 3600, 1200, 1200, 600, 600]
    points = tuple(replace(make_point(), layout=Layout(nodes=nodes)) for nodes in (1, 4, 8))
    assert time_limit(Job(folder=Path("sweep"), mode="jobs", points=points[1:2]), request, None) == 1200
    assert time_limit(Job(folder=Path("sweep"), mode="turns", points=points), request, None) == 600
    limit = Partition(name="short", walltime="0:30:00")
    assert "--walltime 1:00:00" in str(exceeds(Layout(nodes=1), request, limit))
    assert exceeds(Layout(nodes=4), request, limit) is None


def test_a_partition_with_a_short_limit_takes_jobs_in_turns_whose_limit_is_an_estimate() -> None:
    limit = Partition(name="debug", walltime="0:20:00")
    assert exceeds(Layout(nodes=1), JobRequest(mode="turns"), limit) is None
    assert exceeds(Layout(nodes=1), JobRequest(mode="turns", walltime="0:30:00"), limit) is not None
    job = Job(folder=Path("sweep"), mode="turns", points=(make_point(),), in_turns=True)
    assert time_limit(job, JobRequest(mode="turns"), limit) == 1200


@pytest.mark.parametrize(
    ("field", "value", "refusal"),
    [
        ("walltime", "1:00:00,0=0:10:00", ("a list of time",)),
        ("walltime", "1:00:00,0:10:00", ("a list of time",)),
        ("walltime", "1:00:00,4=10", ("is not a time",)),
        ("extra", ("gres=x",), ("as in a directive",)),
        ("extra", ('--comment="x',), ("close the quotation",)),
        ("extra", ("--a\nrm",), ("as in a directive",)),
    ],
)
def test_what_cannot_stand_in_a_script_is_refused(field: str, value: object, refusal: str) -> None:
    with refuses(*refusal):
        JobRequest(**{field: value})  # type: ignore[arg-type]


def test_the_options_reach_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "image.sif").touch()
    words = ["sweep", "--dataset", "mnist", "--data-kind", "synthetic", "--nodes", "2", "--repeats", "1", "--dry-run"]
    words += [
        "--scheduler",
        "slurm",
        "--results",
        str(tmp_path / "results"),
        "--container",
        str(tmp_path / "image.sif"),
    ]
    words += ["--extra", "--gres=nvme:1", "--extra", "--comment='a b'"]
    ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 0, ended.output
    (script,) = (tmp_path / "results").glob("*/jobs/*.sh")
    text = script.read_text()
    assert "#SBATCH --gres=nvme:1\n#SBATCH --comment='a b'\n" in text
    launched = text.split()
    assert launched[launched.index(f"{tmp_path}/image.sif") + 1 :][:5] == ["\\", "python3", "-m", "harness", "train"]
    refused = CliRunner().invoke(main, [*words[:-4], "--container", "nowhere.sif"])
    assert "--container nowhere.sif" in str(refused.exception)


def test_a_site_of_the_users_own_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "mpi-tf-harness/sites"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('scheduler = "slurm"\n[request]\nextra = ["--gres=nvme:1"]\n')
    (folder / "example.toml").write_text('note = "mine, not the one that travels with the harness"\n')
    assert find_site("mine").request.extra == ("--gres=nvme:1",)
    assert find_site("example").note.startswith("mine")
    with pytest.raises(UserError, match="mine"):
        find_site("min")
    monkeypatch.chdir(folder)
    Path("min.toml").write_text('name = "here"\n')
    assert find_site("min").name == find_site("min.toml").name == "here"
