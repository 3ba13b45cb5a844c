"""Replace a function of Keras or TensorFlow, and say so when a release has moved it."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from harness.errors import RunError

Wrapper = Callable[..., Any]


def replace(owner: object, name: str, parameters: tuple[str, ...], make: Callable[[Wrapper], Wrapper]) -> None:
    """Put ``make(original)`` in the place of ``owner.name``.

    `parameters` are the names of the original's first parameters, in order: what the replacement counts on.

    Raises:
        RunError: the installed release has no such function, or it takes other parameters.
    """
    original = vars(owner).get(name)
    where = f"{getattr(owner, '__module__', None) or getattr(owner, '__name__', owner)}.{name}"
    if original is None:
        raise RunError(f"this release of Keras or TensorFlow has no {where}: install the versions in requirements.lock")
    found = tuple(inspect.signature(original).parameters)[: len(parameters)]
    if found != parameters:
        raise RunError(
            f"{where} of this release takes {', '.join(found)} instead of {', '.join(parameters)}: "
            "install the versions in requirements.lock"
        )
    setattr(owner, name, functools.wraps(original)(make(original)))
