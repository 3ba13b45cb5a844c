"""Words of a setting's value, quoted as in a shell."""

import shlex

from harness.base.errors import UserError


def split_words(name: str, text: str) -> list[str]:
    """Return the words of `text`, quoted as in a shell; `name` is the setting's.

    Raises:
        UserError: a quotation is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{name}={text} cannot be split into words ({error}): quote it as in a shell") from error
