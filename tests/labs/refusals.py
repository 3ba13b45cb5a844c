"""Refusals as tests see them: by the function that refuses, and by the values that its sentence names."""

import contextlib
from collections.abc import Iterator

import pytest

from harness.base.errors import UserError


def refusing(error: BaseException) -> str:
    """Return the function that has raised `error`, below `harness`: ``sweep.job_options.parse``."""
    trace = error.__traceback__
    function = ""
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if module.startswith("harness."):
            name = trace.tb_frame.f_code.co_qualname.replace(".<locals>", "")
            function = f"{module.removeprefix('harness.')}.{name}"
        trace = trace.tb_next
    return function


@contextlib.contextmanager
def refused(
    function: str, *values: object, error: type[BaseException] = UserError
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Expect that `function` refuses, as `refusing` names it, and that the sentence names `values`.

    What the sentence says is held in tests/wording.
    """
    with pytest.raises(error) as caught:
        yield caught
    assert refusing(caught.value) == function
    sentence = str(caught.value)
    assert [value for value in values if str(value) not in sentence] == []
