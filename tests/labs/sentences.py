"""Sentences as tests see them: by the values that they name, and by a few words where values alone say too little."""

import contextlib
from collections.abc import Iterator

import pytest

from harness.base.errors import UserError


@contextlib.contextmanager
def refuses(*parts: object, error: type[BaseException] = UserError) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Expect a refusal whose sentence has all `parts`."""
    with pytest.raises(error) as caught:
        yield caught
    says(caught.value, *parts)


def says(text: object, *parts: object) -> str:
    """Expect that `text` has all `parts`; return it from where the first of them stands, with plain blanks."""
    plain = plain_text(text)
    wanted = [plain_text(part) for part in parts]
    assert [part for part in wanted if part not in plain] == [], plain[:2000]
    return plain[min(plain.index(part) for part in wanted) :] if wanted else plain


def count_said(text: object, words: str) -> int:
    """Return how often `text` has these words, whatever the blanks between them."""
    return plain_text(text).count(plain_text(words))


def plain_text(text: object) -> str:
    """Return a text in one line with plain blanks."""
    return " ".join(str(text).replace("\u00a0", " ").split())
