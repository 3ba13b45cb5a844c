"""A release as a user installs it: the wheel in an empty environment and an empty folder, with a network.

With the newest versions of all that it needs, with the oldest that pyproject.toml allows, by the lines of the
container's recipe, and word by word as docs/install.md says. Each takes minutes and downloads up to 1 GB.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.labs.doc_pages import PAGES

pytestmark = [pytest.mark.campaign, pytest.mark.mpi]

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "jobs" / "containers" / "harness.def"
LIMIT_S = 1200
SWEEP = "sweep --dataset mnist --data-kind synthetic --samples 6000 --epochs 2 --nodes 1,2 --repeats 1"


def call(*words: object, folder: Path, **environment: str) -> str:
    """Run a program and return what it said."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [*map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=kept | environment,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.parametrize("versions", ["newest", "oldest"])
def test_doctor_and_a_sweep_run_in_an_empty_environment(versions: str, wheel: Path, tmp_path: Path) -> None:
    call(sys.executable, "-m", "venv", tmp_path / "env", folder=tmp_path)
    programs = tmp_path / "env" / "bin"
    pinned: list[object] = []
    if versions == "oldest":
        lock = tmp_path / "oldest.txt"
        uv = Path(sys.executable).parent / "uv"
        choice = ("--resolution", "lowest-direct", "--only-binary", ":all:", "--python-version", "3.11")
        call(uv, "pip", "compile", "pyproject.toml", *choice, "--quiet", "--output-file", lock, folder=ROOT)
        pinned = ["--only-binary", ":all:", "-r", lock]
    call(programs / "pip", "install", "--quiet", wheel, *pinned, folder=tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    places = {"PATH": f"{programs}:{os.environ['PATH']}", "HARNESS_CACHE_DIR": str(tmp_path / "cache")}
    assert "Everything that runs need works." in call(programs / "harness", "doctor", folder=empty, **places)
    page = call(programs / "harness", *SWEEP.split(), folder=empty, **places).splitlines()[-1]
    assert (empty / page).is_file()


def recipe_lines() -> str:
    """Return the lines of the recipe's part ``%post``."""
    (post,) = re.findall(r"^%post\n(.*?)^%", RECIPE.read_text(), re.MULTILINE | re.DOTALL)
    return post


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("debootstrap") is None, reason="needs root and debootstrap (Debian package)"
)
def test_the_lines_of_the_container_work_in_a_plain_debian_root(wheel: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    call("debootstrap", "--variant=minbase", "bookworm", root, folder=tmp_path)
    shutil.copy(wheel, root / "opt")
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    certificates = os.environ.get("PIP_CERT")  # of a network that has an authority of its own
    if certificates:
        shutil.copy(certificates, root / "opt" / "authorities.crt")
    (root / "post.sh").write_text(recipe_lines())
    (root / "try.sh").write_text(f"cd /root && harness doctor && harness {SWEEP}\n")
    mounts = [
        f"mount -t proc proc {root}/proc",
        f"mount -t sysfs sysfs {root}/sys",
        f"mount -t devtmpfs devtmpfs {root}/dev",
        f"mkdir -p {root}/dev/shm",
        f"mount -t tmpfs tmpfs {root}/dev/shm",
    ]
    trusted = "PIP_CERT=/opt/authorities.crt " if certificates else ""
    enter = f"exec chroot {root} env -i HOME=/root {trusted}PATH=/opt/harness/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -e"
    for script in ("post.sh", "try.sh"):
        inside = " && ".join([*mounts, f"{enter} /{script}"])
        call("unshare", "--mount", "sh", "-c", inside, folder=tmp_path)


def block_of(heading: str, number: int = 0) -> str:
    """Return a block of shell below a heading of docs/install.md."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGES["install.md"], re.MULTILINE | re.DOTALL)
    blocks: list[str] = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return blocks[number]


def type_block(block: str, folder: Path) -> str:
    """Type a block into a shell in `folder`, and return what was said."""
    places = {"HARNESS_CACHE_DIR": str(folder / "cache"), "HARNESS_QUIET_S": "0"}
    return call("sh", "-e", "-c", block, folder=folder, **places)


ENDS_WELL = "Everything that runs need works."


def test_a_laptop_as_the_page_says_and_then_another_mpi(wheel: Path, tmp_path: Path) -> None:
    """One environment for both, as it is 3 GB."""
    shutil.copy(wheel, tmp_path)
    laptop = block_of("On a laptop or a workstation").replace("sweep --dataset mnist --nodes 1..2", SWEEP)
    said = type_block(laptop, tmp_path)
    assert ENDS_WELL in said and (tmp_path / said.splitlines()[-1]).is_file()
    other = ". env/bin/activate\n" + block_of("Which MPI") + f"harness {SWEEP}\n"
    said = type_block(other, tmp_path)
    assert ENDS_WELL in said and "Intel" in said and (tmp_path / said.splitlines()[-1]).is_file()


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs an MPI library of the system")
def test_a_cluster_as_the_page_says(wheel: Path, tmp_path: Path) -> None:
    """Where its modules are loaded already, and no job is submitted."""
    shutil.copy(wheel, tmp_path)
    block = "module() { :; }\nSCRATCH=$PWD\n" + block_of("On a cluster, with modules and the site's MPI")
    said = type_block(block.replace("--dry-run", "--dry-run --scheduler slurm"), tmp_path)
    assert ENDS_WELL in said
    (script,) = (tmp_path / "results").glob("*/jobs/*.sh")
    assert "export HARNESS_MPI=system" in script.read_text()
    assert list((tmp_path / "mpi-tf-harness").glob("native/*/libharness_comm.so"))


def test_a_machine_without_a_network_as_the_page_says(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    call("git", "clone", "--quiet", ROOT, checkout, folder=tmp_path)
    type_block(block_of("Without a network"), checkout)
    alone = tmp_path / "carried"
    checkout.rename(alone)
    small = " ".join(f"{name.upper()}={value}" for name, value in (("samples", 6000), ("epochs", 2), ("repeats", 1)))
    block = block_of("Without a network", 1).replace("NODES=1..2", f"NODES=1..2 {small} DATA_KIND=synthetic")
    # What would ask a network has nothing to ask.
    said = type_block(f"export PIP_INDEX_URL=file:///nowhere PIP_NO_INDEX=1\n{block}", alone)
    assert (alone / said.splitlines()[-1]).is_file()
