"""Users' own CSV files, read or refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness import datasets
from harness.base.errors import UserError
from harness.schema.workload import Workload


def prepare(path: Path, **settings: str) -> datasets.Prepared:
    workload = Workload(dataset="file", model="dnn", batch_per_rank=4, data_file=str(path), **settings)  # type: ignore[arg-type]
    return datasets.prepare(datasets.locate(workload, None))


def refused(path: Path, content: str | bytes, **settings: str) -> str:
    """Return the sentence with which a file is refused; nothing of it is left in the cache."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError) as caught:
        prepare(path, **settings)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert path.name in sentence or sentence.startswith("unknown ")
    return sentence


def lines(form: Callable[[int], str], header: str = "", rows: int = 40) -> str:
    return header + "".join(f"{form(row)}\n" for row in range(rows))
