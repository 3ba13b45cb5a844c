"""Fields that records got after others of their kind had been written and named."""

from dataclasses import Field, field
from typing import Any

_ADDED = "added"


def added(default: Any) -> Any:
    """Return a dataclass field of this default that a key leaves out while it is the default."""
    return field(default=default, metadata={_ADDED: True})


def is_added(one: "Field[Any]", owner: object) -> bool:
    """Tell whether field `one` of `owner` was added and has its default."""
    return bool(one.metadata.get(_ADDED) and getattr(owner, one.name) == one.default)
