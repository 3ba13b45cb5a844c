"""What the words on pages mean: each is written once, in docs/glossary.md, and pages link to it."""

import re

from harness.base.files import resource

SOURCE = "docs/glossary.md"


def glossary() -> dict[str, str]:
    """Return every term with its definition."""
    text = resource(SOURCE).read_text(encoding="utf-8")
    return dict(re.findall(r"^\*\*(.+?)\*\*: (.+)$", text, flags=re.MULTILINE))


def anchor(term: str) -> str:
    """Return the place of `term` in the page of the glossary."""
    return re.sub(r"\W+", "-", term.lower())
