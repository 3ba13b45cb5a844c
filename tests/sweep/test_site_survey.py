"""The site file that `harness site init` writes: from recorded answers, read again as a site."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.sweep.schedulers import slurm
from harness.sweep.schedulers.pbs import read_pbs_nodes, read_pbs_queues
from harness.sweep.site import JobRequest, Partition, Site, read_site
from harness.sweep.site_survey import SiteSurvey, read_mpi_modules, site_file_text, survey_site
from tests.labs.sentences import refuses, says

RECORDED = Path(__file__).parents[1] / "data/pbs"
# The form of sinfo of a real Slurm 22.05, with the facts of three kinds of node.
SINFO = """\
debug*|4|1|16|64000|(null)|30:00
batch|100|2|64|256000|(null)|1-00:00:00
batch|8|2|64|512000|(null)|1-00:00:00
gpu|16|2|32|512000|gpu:a100:4(S:0-1)|infinite
"""
LMOD = """\
/apps/modules/Core:
gcc/12.3.0
openmpi/
openmpi/4.1.6
openmpi/5.0.3(default)
intel/impi/2021.11
impi/2021.11
mpi4py/4.0
python/3.11
/apps/modules/MPI:
mvapich2/2.3.7
cray-mpich/8.1.28
"""


def site_of(survey: SiteSurvey, folder: Path) -> Site:
    """Return what the text for `survey` says when it is read again."""
    path = folder / "centre.toml"
    path.write_text(site_file_text(survey))
    return read_site(path)


def test_the_default_partition_and_the_largest_are_stated(tmp_path: Path) -> None:
    partitions = slurm.read_partitions(SINFO)
    survey = SiteSurvey(scheduler="slurm", host="login03.centre.example", partitions=partitions, launcher="srun")
    site = site_of(survey, tmp_path)
    assert site.scheduler == "slurm" and site.hosts == ("login[0-9]*.centre.example",)
    assert site.partition == (
        Partition(
            name="debug",
            default=True,
            nodes=4,
            cores_per_node=16,
            numa_domains=1,
            gpus_per_node=0,
            memory_mb=64000,
            walltime="0:30:00",
        ),
        Partition(
            name="batch",
            nodes=108,
            cores_per_node=128,
            numa_domains=2,
            gpus_per_node=0,
            memory_mb=512000,
            walltime="24:00:00",
        ),
    )
    assert (site.modules, site.network, site.scratch) == ((), "", "")
    assert "debug, batch, gpu" in site_file_text(survey)


def test_queues_of_pbs_have_the_facts_of_the_nodes(tmp_path: Path) -> None:
    """The answers are of a real OpenPBS 23.06, but the one about the server's default, which its manual shows."""
    node, _ = read_pbs_nodes((RECORDED / "pbsnodes.json").read_text())
    assert node is not None
    server = '{"Server": {"head": {"server_state": "Active", "default_queue": "workq"}}}'
    (queue,) = read_pbs_queues((RECORDED / "qstat_queue.json").read_text(), server, node)
    assert (queue.name, queue.default, queue.walltime) == ("workq", True, None)
    assert (queue.nodes, queue.cores_per_node) == (2, node.cores_per_node)
    limited = """{"Queue": {
      "long": {"queue_type": "Execution", "enabled": "True", "started": "True",
               "resources_max": {"walltime": "48:00:00", "nodect": 3}},
      "route": {"queue_type": "Route", "enabled": "True", "started": "True"},
      "shut": {"queue_type": "Execution", "enabled": "False", "started": "True"}}}"""
    (long,) = read_pbs_queues(limited, server, None)
    assert (long.name, long.default, long.nodes, long.walltime) == ("long", False, 3, "48:00:00")
    site = site_of(SiteSurvey(scheduler="pbs", host="head", partitions=(long, queue)), tmp_path)
    assert [partition.name for partition in site.partition] == ["workq", "long"]


def test_modules_of_mpi_are_found_among_others() -> None:
    found = ("openmpi/4.1.6", "openmpi/5.0.3", "intel/impi/2021.11", "impi/2021.11", "mvapich2/2.3.7")
    assert read_mpi_modules(LMOD) == (*found, "cray-mpich/8.1.28")
    assert read_mpi_modules("bash: line 1: module: command not found\n") == ()


@pytest.mark.parametrize(
    "survey",
    [
        SiteSurvey(scheduler="local", host=""),
        SiteSurvey(scheduler="pbs", host="h1", partitions=(Partition(name="q", default=True),)),
        SiteSurvey(
            scheduler="slurm",
            host="login1",
            partitions=slurm.read_partitions(SINFO),
            launcher='a "sentence"\nof two lines',
            mpi_modules=read_mpi_modules(LMOD) * 3,
            interfaces=("eth0",),
            scratch="/scratch/of me",
        ),
    ],
    ids=["nothing", "an unknown node", "much"],
)
def test_every_line_that_is_left_to_fill_in_is_a_right_one(survey: SiteSurvey, tmp_path: Path) -> None:
    stated = site_of(survey, tmp_path)
    assert stated.request == JobRequest() and stated.modules == () and stated.network == ""
    lines = site_file_text(survey).splitlines()
    filled = [line.removeprefix("# ") if " = " in line else line for line in lines]
    site = msgspec.convert(msgspec.toml.decode("\n".join(filled)), Site)
    assert site.modules and site.network and site.scratch and site.request.account == "project1"
    assert all(None not in (one.cores_per_node, one.numa_domains, one.walltime) for one in site.partition)


def test_what_a_shell_has_loaded_and_a_fast_network_are_stated(tmp_path: Path) -> None:
    seen = SiteSurvey(scheduler="slurm", host="h", loaded_modules=("gcc/12", "openmpi/5"), interfaces=("ib0", "eth0"))
    site = site_of(seen, tmp_path)
    assert (site.modules, site.network) == (("gcc/12", "openmpi/5"), "ib0")


def test_this_machine_is_surveyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADEDMODULES", "gcc/12:openmpi/5")
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    survey = survey_site()
    assert survey.scheduler and survey.launcher
    assert (survey.loaded_modules, survey.scratch) == (("gcc/12", "openmpi/5"), "/scratch/me")


def test_a_file_is_written_over_only_when_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "centre.toml"
    path.write_text("# mine\n")
    with refuses("centre.toml", "--replace"):
        CliRunner().invoke(main, ["site", "init", "centre"], standalone_mode=False, catch_exceptions=False)
    assert path.read_text() == "# mine\n"
    ended = CliRunner().invoke(main, ["site", "init", "centre", "--replace"], catch_exceptions=False)
    assert ended.exit_code == 0 and read_site(path).scheduler
    says(ended.output, path.read_text(), "site check centre.toml")
    other = CliRunner().invoke(main, ["site", "init", str(tmp_path / "other.toml")], catch_exceptions=False)
    assert other.exit_code == 0 and read_site(tmp_path / "other.toml").name == "other"
