"""The sentences of the functions that tests name: as the code has them, and as the tables here have them.

``refusals.txt`` has the functions that tests see refuse, ``sentences.txt`` those of the sentences that tests meet.
"""

import ast
import re
from pathlib import Path

from tests.labs.code_sentences import ROOT, node_of, sentences

REFUSALS = Path(__file__).with_name("refusals.txt")
SENTENCES = Path(__file__).with_name("sentences.txt")
_FUNCTION = re.compile(r"[a-z]\w*(?:\.\w+)+")
_LABS = ("tests.labs.refusals", "tests.labs.code_sentences")
_MEETING = ("worded", "count_worded")


def pages() -> dict[Path, str]:
    """Return the tables as the code would have them: each function in brackets, and its sentences below it."""
    refusing: set[str] = set()
    speaking: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        if any(lab in text for lab in _LABS):
            tree = ast.parse(text)
            met = {id(constant) for call in ast.walk(tree) if _is_meeting(call) for constant in ast.walk(call)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and _FUNCTION.fullmatch(node.value):
                    (speaking if id(node) in met else refusing).add(node.value)
    return {REFUSALS: _page(refusing), SENTENCES: _page(speaking)}


def _is_meeting(node: ast.AST) -> bool:
    """Return whether `node` calls one of those that expect a sentence of a function."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _MEETING


def _page(names: set[str]) -> str:
    functions = sorted(name for name in names if node_of(name) is not None)
    parts = [[f"[{name}]", *(repr(text)[1:-1] for text in sentences(name))] for name in functions]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"
