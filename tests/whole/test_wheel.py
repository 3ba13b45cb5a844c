"""The wheel alone, in an empty folder and without a network: plans, bundles and checks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.labs.caches import own_cache

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SWEEP = ROOT / "tests" / "data" / "mnist-dnn-6x2"
LIMIT_S = 600


def python(*words: object, folder: Path | None = None, apart: bool = False, **environment: str) -> str:
    """Run Python and return what it said; `apart`, where that is possible, with no network but a dead loopback."""
    command = [sys.executable, *map(str, words)]
    if apart and subprocess.run(["unshare", "-Urn", "true"], capture_output=True, check=False).returncode == 0:
        command = ["unshare", "-Urn", *command]
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, env=os.environ | environment, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the installed wheel, as it comes out of the sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    python("-m", "hatchling", "build", "-t", "sdist", "-d", folder, folder=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(sdist, folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    python("-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=source)
    (wheel,) = folder.glob("*.whl")
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
    python(*pip, "--target", folder / "site", wheel)
    return folder / "site"


def test_it_has_every_file_of_the_tree_that_the_harness_reads(site: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "harness"], cwd=ROOT, capture_output=True, text=True, check=False)
    files = [ROOT / line for line in listed.stdout.splitlines()]
    if not files:  # the tree of an sdist
        files = [path for path in (ROOT / "harness").rglob("*.*") if "__pycache__" not in path.parts]
    wanted = {path.relative_to(ROOT) for path in files if path.exists()}
    for folder in ("jobs/templates", "jobs/sites", "reports/templates"):
        for path in (ROOT / folder).rglob("*.*"):
            wanted.add(Path("harness/_resources") / path.relative_to(ROOT))
    assert len(wanted) > 300
    assert not {path for path in wanted if not (site / path).is_file()}


def test_it_plans_and_bundles_in_an_empty_folder(site: Path, tmp_path: Path) -> None:
    def harness(*words: object) -> str:
        environment = {"PYTHONPATH": str(site), "HARNESS_CACHE_DIR": own_cache(tmp_path / "cache")}
        return python("-m", "harness", *words, folder=tmp_path, apart=True, **environment)

    program = ("-c", "import harness; print(harness.__file__)")
    assert python(*program, folder=tmp_path, PYTHONPATH=str(site)).startswith(str(site))
    assert "results/higgs-dnn" in harness("sweep", "--dataset", "higgs", "--data-kind", "synthetic", "--dry-run")
    shutil.copytree(SWEEP, tmp_path / "results" / SWEEP.name)
    archive = harness("bundle", SWEEP.name).splitlines()[-1]
    assert Path(archive).name in harness("bundle", "verify", archive)
