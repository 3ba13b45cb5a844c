"""Whether a script is written for Horovod follows from its imports, and not from a word in it."""

import pytest

from harness.transparent.script_imports import imports_horovod


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import horovod.keras as hvd\n", True),
        ("def main():\n    from horovod import tensorflow\n", True),
        ("import keras\n# was horovod\nname = 'horovod'\n", False),
        ("from .horovod import something\n", False),
        ("import horovod_like\n", False),
        ("this is no Python: import horovod\n", False),
    ],
)
def test_an_import_counts_and_a_word_does_not(tmp_path, text, expected):
    script = tmp_path / "train.py"
    script.write_text(text)
    assert imports_horovod(script) == expected


def test_a_file_beside_the_script_counts_if_it_is_imported(tmp_path):
    script = tmp_path / "train.py"
    (tmp_path / "ranks.py").write_text("import train\nimport horovod.tensorflow\n")
    script.write_text("import keras\n")
    assert not imports_horovod(script)
    script.write_text("from ranks import start\n")
    assert imports_horovod(script)
