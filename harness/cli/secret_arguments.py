"""Arguments that look like secrets are refused: they would stand in records and reports."""

import re
from collections.abc import Iterable

from harness.base.errors import UserError

# Not tokens of language models: --max-tokens, --pad-token, --tokenizer.
_NAME = re.compile(
    r"--?(?:[a-z0-9]+[-_])*(?:password|passwd|secret|credentials?|api[-_]?key|private[-_]?key)"
    r"|--?(?:(?:auth|access|api|bearer|hf|github|gitlab|wandb|login|user)[-_])?token",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^/@\s:]*:[^/@\s]+@", re.IGNORECASE)  # user:password@host


def check_secrets(arguments: Iterable[str]) -> None:
    """Refuse arguments that look like secrets; the sentence does not hold them.

    Raises:
        UserError: naming the option.
    """
    for argument in arguments:
        name = argument.partition("=")[0]
        if _NAME.fullmatch(name) or _ADDRESS.search(argument):
            what = f"'{name}'" if _NAME.fullmatch(name) else "that is an address with a password"
            raise UserError(
                f"a script argument {what} looks like a secret, and arguments stand in records and reports: let the "
                "script read it from the environment or from a file"
            )
