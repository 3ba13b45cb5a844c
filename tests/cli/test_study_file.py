"""A study in a file is the command line of the same options."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.claims.paper_experiments import PRESET
from harness.cli.command_check import check_command as check_click
from harness.cli.command_make import command_line
from harness.cli.command_sweep import sweep_command as sweep_click
from harness.cli.common_options import GroupedOption
from harness.schema.claim import EXPERIMENTS
from harness.schema.layout import Layout
from harness.schema.option import GROUPS
from harness.schema.study_text import TABLES
from harness.schema.sweep_folder import SweepFolder, sweep_folders
from harness.sweep.sweep_files import read_study
from tests.labs.asked import asked_sweep
from tests.labs.sentences import refuses

STUDIES = Path(__file__).parents[2] / "jobs/studies"
LAYOUTS = (Layout(nodes=1), Layout(nodes=2))
STUDY = """
[data]
dataset = "adult"
data-kind = "synthetic"
samples = 1000

[train]
optimizer = "momentum"
learning-rate = 0.02
epochs = 2
drop-remainder = true

[ranks]
nodes = [1, 2]
repeats = 3

[where]
scheduler = "local"
exclusive = false
extra = ["--gres=nvme:1", "--comment=two words"]
"""
WORDS = (
    *("--dataset", "adult", "--data-kind", "synthetic", "--samples", "1000"),
    *("--optimizer", "momentum", "--learning-rate", "0.02", "--epochs", "2", "--drop-remainder"),
    *("--nodes", "1,2", "--repeats", "3"),
    *("--scheduler", "local", "--share-nodes", "--extra", "--gres=nvme:1", "--extra", "--comment=two words"),
)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return path


def taken(*words: str) -> dict[str, Any]:
    """Return the parameters of `harness sweep` with these words."""
    return sweep_click.make_context("sweep", list(words)).params


def test_a_study_is_the_command_line_of_its_options(study: Path) -> None:
    assert taken(str(study)) == taken(*WORDS)


def test_options_of_the_command_line_come_first(study: Path) -> None:
    words = ("--epochs", "5", "--no-drop-remainder", "--extra", "--gres=gpu:1")
    given = taken(str(study), *words)
    assert (given["epochs"], given["drop_remainder"], given["extra"]) == (5, False, ("--gres=gpu:1",))
    left = {name: value for name, value in given.items() if name not in ("epochs", "drop_remainder", "extra")}
    assert left.items() <= taken(*WORDS).items()


def test_make_names_the_study() -> None:
    assert command_line("sweep", {"STUDY": "study.toml", "EPOCHS": "5"}) == ["sweep", "--epochs=5", "--", "study.toml"]


def test_a_check_takes_its_limits_and_its_place_from_the_study(study: Path) -> None:
    with study.open("a") as file:
        file.write("[check]\nthreshold = 5\nuntil-sure = 10\n[output]\nresults = 'elsewhere'\n")
    given = check_click.make_context("check", ["--study", str(study), "--until-sure", "20"]).params
    assert (given["threshold"], given["until_sure"], given["scheduler"]) == (5, 20, "local")
    assert (given["extra"], given["results"]) == (("--gres=nvme:1", "--comment=two words"), Path("elsewhere"))
    assert taken(str(study)).items() >= {"epochs": 2, "results": Path("elsewhere")}.items()  # a sweep as before


def test_every_group_of_options_has_a_table_and_no_key_is_in_two() -> None:
    assert set(TABLES.values()) == set(GROUPS)
    keys = [option.opts[0] for option in sweep_click.params if isinstance(option, GroupedOption) and not option.hidden]
    assert len(keys) == len(set(keys)) > 50


def test_a_sweep_from_a_file_has_the_identity_of_the_one_from_options(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(STUDY.partition("exclusive")[0])  # this machine alone knows nothing of shared nodes
    options = WORDS[: WORDS.index("--share-nodes")]
    sweeps = []
    for name, words in (("file", (str(study),)), ("options", options)):
        results = tmp_path / name
        line = [*words, "--dry-run", "--results", str(results), "--reports", str(tmp_path / "reports")]
        ended = CliRunner().invoke(sweep_click, line, catch_exceptions=False)
        assert ended.exit_code == 0, ended.output
        (folder,) = sweep_folders(results)
        sweeps.append((folder.name, read_study(SweepFolder(folder)).sweep))
    assert sweeps[0] == sweeps[1]


def test_each_of_the_papers_networks_has_a_study() -> None:
    assert {path.stem for path in STUDIES.glob("*.toml")} == set(EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_study_of_the_paper_is_the_sweep_of_its_options(name: str) -> None:
    experiment = EXPERIMENTS[name]
    words = ("--dataset", experiment.dataset, "--model", experiment.model, "--preset", PRESET)
    repeated = ("--repeats", "3")
    from_file = asked_sweep(taken(str(STUDIES / f"{name}.toml"), *repeated), LAYOUTS)
    from_options = asked_sweep(taken(*words, *repeated), LAYOUTS)
    assert (from_file, from_file.name) == (from_options, from_options.name)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("[trian]\nepochs = 1\n", ("trian", "'train'")),
        ("epochs = 1\n", ("epochs", "table")),
        ("train = 1\n", ("train", "[train]")),
        ("[train]\nepocs = 1\n", ("epocs", "'epochs'", "[train]")),
        ("[train]\nnodes = 1\n", ("nodes", "[train]", "[ranks]")),
        ("[train]\nepochs = 2.7\n", ("epochs in [train]", "2.7")),
        ("[train]\nepochs = true\n", ("epochs in [train]", "True")),
        ("[train]\nepochs = [1, 2]\n", ("epochs in [train]", "1,2")),
        ("[train]\nepochs = {a = 1}\n", ("epochs in [train]", "a number or a text")),
        ("[train]\nxla = 'yes'\n", ("xla in [train]", "yes", "true or false")),
        ("[where]\nmpi = 'whel'\n", ("mpi in [where]", "whel", "wheel")),
        ("[where]\nnested = true\n", ("nested", "[where]")),  # was replaced, and is hidden in help too
        ("[check]\ntreshold = 5\n", ("treshold", "'threshold'", "[check]")),
        ("[check]\nthreshold = 99\n", ("threshold in [check]", "99")),
        ("[train]\nthreshold = 5\n", ("threshold", "[train]", "[check]")),
        ("[train\n", ("not TOML",)),
        (b"[data]\nnote = '\xff'\n", ("not TOML",)),
        (None, ("cannot be read", "study.toml")),
    ],
)
def test_what_is_no_setting_is_refused_by_name(
    content: str | bytes | None, parts: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "study.toml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with refuses(path, *parts):
        taken(str(path))
