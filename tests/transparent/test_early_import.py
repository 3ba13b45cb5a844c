"""TensorFlow is imported before a script runs only where nothing of the script's could come before it."""

import json
import subprocess
import sys

import pytest

from harness.transparent.early_import import first_library, import_early

FIRST = {
    "import tensorflow as tf\n": "tensorflow",
    "import keras\nimport tensorflow\n": "keras",
    "from keras import layers\n": "keras",
    "import tensorflow.compat.v1 as tf\n": "tensorflow",
    '"""Train."""\nfrom __future__ import annotations\nimport os, sys\nimport numpy\nimport tensorflow\n': "tensorflow",
    "from tensorflow import keras\nimport os\nos.environ['CUDA_VISIBLE_DEVICES'] = ''\n": "tensorflow",
}
LATER = {
    "a variable": "import os\nos.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'\nimport tensorflow\n",
    "a helper": "import settings\nimport tensorflow\n",
    "a package that may set variables": "import dotenv\nimport tensorflow\n",
    "another package": "import os, matplotlib.pyplot, tensorflow\n",
    "a relative import": "from . import settings\nimport tensorflow\n",
    "a look at the modules": "import sys\nprint('tensorflow' in sys.modules)\nimport tensorflow\n",
    "the path": "import sys\nsys.path.insert(0, 'other')\nimport tensorflow\n",
    "an attempt": "try:\n    import tensorflow\nexcept ImportError:\n    pass\n",
    "a condition": "import sys\nif sys.argv[1:]:\n    import tensorflow\n",
    "a function": "def train():\n    import tensorflow\ntrain()\n",
    "a failure": "raise ValueError\nimport tensorflow\n",
    "no import": "print(1)\n",
    "nothing": "",
    "no Python": "import tensorflow\nprint(\n",
    "no text": "\0",
}


def test_the_first_library_is_found_after_harmless_imports(tmp_path):
    script = tmp_path / "script.py"
    found = {}
    for source in FIRST:
        script.write_text(source)
        found[source] = first_library(script)
    assert found == FIRST


@pytest.mark.parametrize("source", LATER.values(), ids=LATER)
def test_what_may_come_before_the_import_leaves_it_to_the_script(source, tmp_path):
    (tmp_path / "script.py").write_text(source)
    assert first_library(tmp_path / "script.py") is None
    assert not import_early(tmp_path / "script.py")


@pytest.mark.parametrize("module", ["tensorflow", "random", "numpy"])
def test_a_module_of_the_scripts_own_leaves_the_import_to_the_script(module, tmp_path):
    (tmp_path / f"{module}.py").write_text("")
    (tmp_path / "script.py").write_text("import random\nimport numpy\nimport tensorflow\n")
    assert first_library(tmp_path / "script.py") is None


def test_a_script_that_cannot_be_read_leaves_the_import_to_python(tmp_path):
    assert first_library(tmp_path) is None


@pytest.mark.parametrize("is_broken", [False, True])
def test_both_libraries_are_imported_in_the_order_of_the_script(is_broken, tmp_path):
    for name in ("tensorflow", "keras"):
        (tmp_path / "installed").mkdir(exist_ok=True)
        (tmp_path / "installed" / f"{name}.py").write_text(f"print({name!r})\n" + "raise OSError\n" * is_broken)
    (tmp_path / "script.py").write_text("import keras\n")
    program = (
        "import json, pathlib, sys; from harness.transparent.early_import import import_early; "
        f"sys.path.insert(0, {str(tmp_path / 'installed')!r}); "
        f"print(json.dumps(import_early(pathlib.Path({str(tmp_path / 'script.py')!r}))))"
    )
    finished = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    *order, is_early = finished.stdout.split()
    assert json.loads(is_early) is not is_broken
    assert order == (["keras"] if is_broken else ["keras", "tensorflow"])
