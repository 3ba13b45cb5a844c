"""The same records give the same figures, byte for byte, whatever the user's settings of matplotlib are."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.launch import ROOT

pytestmark = pytest.mark.slow

# A figure with what settings reach: text, ticks, a legend, markers, bars; and its files of every kind.
DRAW = """
import hashlib
from harness.report.svg import draw, printed

def paint(axes):
    axes.plot([1, 2, 4], [1, 1.9, 3.6], label="measured, $x_1$ & 50 %", marker="o")
    axes.bar([1, 2], [1, 2], yerr=[0.1, 0.2])
    axes.set_xlabel("MPI ranks")

picture = draw("figure", "A figure", paint)
drawing = picture.draw()
contents = [drawing.inline().encode(), *map(drawing.file, ("svg", "pdf", "png")), printed(picture, 3.5)]
print([hashlib.sha256(content).hexdigest() for content in contents])
"""

HOSTILE = {
    "tex": "text.usetex : True\nfont.family : serif\ntext.latex.preamble : \\usepackage{nowhere}\n",
    "fonts": "font.family : No Such Font\nfont.size : 31\nmathtext.fontset : stix\naxes.unicode_minus : False\n",
    "files": "svg.fonttype : none\nsvg.hashsalt : mine\npdf.fonttype : 3\npdf.compression : 0\nsavefig.bbox : tight\n"
    "savefig.dpi : 50\nsavefig.transparent : True\nsavefig.facecolor : black\nsvg.image_inline : False\n",
    "backend": "backend : TkAgg\ninteractive : True\ntoolbar : None\n",
    "looks": "axes.prop_cycle : cycler(color=['red'])\nlines.marker : x\nlines.linestyle : --\n"
    "path.sketch : 1, 100, 2\naxes.formatter.use_locale : True\nfigure.constrained_layout.use : True\n"
    "figure.autolayout : True\n",
    "unknown": "no.such.key : 1\naxes.linewidth : thick\nthis is no setting\nfont.size\n",
    "binary": b"\xff\xfe\x00text.usetex : True\n",
}


def drawn(folder: Path, **changes: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MPL")}
    environment |= {"PYTHONPATH": str(ROOT), **changes}
    command = [sys.executable, "-c", DRAW]
    reply = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert reply.returncode == 0 and "Traceback" not in reply.stderr, reply.stderr
    return reply.stdout


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    return drawn(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_users_settings_reach_no_figure(name: str, plain: str, tmp_path: Path) -> None:
    content = HOSTILE[name]
    file = tmp_path / "matplotlibrc"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert drawn(elsewhere, MATPLOTLIBRC=str(file)) == plain


def test_other_ways_to_set_matplotlib(plain: str, tmp_path: Path) -> None:
    settings = tmp_path / "settings"
    settings.mkdir()
    (settings / "matplotlibrc").write_text(HOSTILE["tex"])
    (settings / "here").mkdir()
    (settings / "here" / "matplotlibrc").write_bytes(b"\xff\xfe")
    assert drawn(settings / "here", MPLCONFIGDIR=str(settings), MPLBACKEND="no-such-backend") == plain
    (tmp_path / "home" / ".config" / "matplotlib").mkdir(parents=True)
    (tmp_path / "home" / ".config" / "matplotlib" / "matplotlibrc").write_text(HOSTILE["tex"])
    assert drawn(tmp_path, HOME=str(tmp_path / "home")) == plain


def test_the_process_keeps_its_environment_and_folder(tmp_path: Path) -> None:
    code = (
        "import os; before = dict(os.environ), os.getcwd(); import harness.report.svg; "
        "assert (dict(os.environ), os.getcwd()) == before"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "svg"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)


def test_matplotlib_is_imported_in_one_place() -> None:
    imports = re.compile(r"^\s*(import|from) matplotlib", re.MULTILINE)
    modules = [path for path in (ROOT / "harness").rglob("*.py") if imports.search(path.read_text(encoding="utf-8"))]
    assert [path.name for path in modules] == ["own_matplotlib.py"]
