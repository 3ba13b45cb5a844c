"""Users' own code by its name: imported where ranks train, and nowhere that only reads records.

A record names code of whoever made it. So the rooms that read records may not import this module; `pyproject.toml` has
the contract.
"""

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.setting_names import setting
from harness.schema.sync_policies import SyncPolicy, known_policy


def import_own(option: str, text: str) -> Any:
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
        raise UserError(f"{setting(option, text)} cannot be imported: {error}; write package.module:name") from error
    if not callable(getattr(module, name, None)):
        raise UserError(f"{setting(option, text)} names no function or class: '{module_name}' has no callable '{name}'")
    return getattr(module, name)


@functools.cache
def find_policy(text: str) -> SyncPolicy:
    """Return the policy that `text` names; raise a UserError if it has no known form, or cannot be imported."""
    built_in = known_policy(text)
    if built_in:
        return built_in
    policy = import_own("sync", text)
    if not isinstance(policy, type) or not issubclass(policy, SyncPolicy):
        raise UserError(
            f"{setting('sync', text)} does not name a sync policy: it must be a subclass of "
            f"{SyncPolicy.__module__}.SyncPolicy"
        )
    return policy()
