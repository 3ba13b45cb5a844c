"""The exit codes of all commands and ranks: each number has one meaning. docs/exit-codes.md lists them."""

FAILED = 1
"""A launch, a rank or a comparison failed."""
BAD_INPUT = 2
"""What the user gave cannot be used; one sentence says what and how to mend it."""
UNDECIDED = 3
"""Launches ran, but have no valid times, or a comparison cannot tell."""
LOST = 4
"""A launch came to its end and wrote its record without some of its ranks."""
HANG = 5
"""Ranks made no progress: a page says which one is missing and where the others wait."""
PARTED = 6
"""The user's script has led the ranks into different exchanges, of which none can end."""
AGAIN = 75
"""A launch wrote a checkpoint and is to be started again (EX_TEMPFAIL of sysexits.h)."""
SEPARATE_WORLDS = 76
"""A rank is alone in its MPI world although several were to be started."""
INTERRUPTED = 130
"""Ctrl-C, SIGTERM or a closed terminal ended the command."""
SIGNALLED = 128
"""Added to the number of the signal that ended a process."""


def of_return_code(return_code: int) -> int:
    """Return the exit code of a child process of which `subprocess` tells `return_code`: signals are negative there."""
    return return_code if return_code >= 0 else SIGNALLED - return_code
