"""The sentences of the functions that tests name: as the code has them, and as ``refusals.txt`` here has them."""

import re
from pathlib import Path

from tests.labs.code_sentences import ROOT, node_of, sentences

TABLE = Path(__file__).with_name("refusals.txt")
_FUNCTION = re.compile(r'"([a-z]\w*(?:\.\w+)+)"')
_LABS = ("tests.labs.refusals", "tests.labs.code_sentences")


def functions() -> list[str]:
    """Return the functions that tests name, as `refused` and `worded` of tests/labs take them."""
    names = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        if any(lab in text for lab in _LABS):
            names |= {name for name in _FUNCTION.findall(text) if node_of(name) is not None}
    return sorted(names)


def page() -> str:
    """Return the table as the code would have it: each function in brackets, and its sentences below it."""
    parts = [[f"[{name}]", *(repr(text)[1:-1] for text in sentences(name))] for name in functions()]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"
