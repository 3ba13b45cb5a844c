"""A user's own code where a setting names one of the harness's: ``package.module:name``."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from harness.base.errors import UserError

_FORM = re.compile(r"(?!weights:)[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)  # weights:K is a sync policy of ours


def is_own(text: str) -> bool:
    """Tell whether a setting's `text` names a user's own code; nothing is imported."""
    return _FORM.fullmatch(text) is not None


def import_own(setting: str, text: str) -> Any:
    """Return what ``package.module:name`` names; modules are looked for in the working directory too.

    Raises:
        UserError: there is no such module, or it does not have the name.
    """
    module_name, _, name = text.partition(":")
    if str(Path.cwd()) not in sys.path:  # where `python -m` would look; a console script does not
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(f"{setting}={text} cannot be imported: {error}; write package.module:name") from error
    if not callable(getattr(module, name, None)):
        raise UserError(f"{setting}={text} names no function or class: '{module_name}' has no callable '{name}'")
    return getattr(module, name)
