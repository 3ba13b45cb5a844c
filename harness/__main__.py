"""Entry point: one sentence and an exit code for every error a user can mend."""

import logging
import os
import sys
from collections.abc import Sequence

import click

from harness.base.current_user import settle_home
from harness.base.errors import RunError, UserError
from harness.base.exit_codes import BAD_INPUT, FAILED, INTERRUPTED, UNDECIDED
from harness.base.record_words import printable
from harness.cli import MAKE
from harness.cli import main as group
from harness.cli.rank_trees import part_files


class _PrintableFormatter(logging.Formatter):
    """The text of a warning, with nothing that steers a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text that is printed."""
        return printable(super().format(record))


# Of BAD_INPUT its one sentence is enough.
_MEANINGS = {FAILED: "something failed, or got worse", UNDECIDED: "undecided"}


def run_command_line(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code, one of `harness.base.exit_codes` or a script's own.

    An OSError that names a file got here because a path of the user's cannot be used as it was: one sentence too.
    """
    if logging.lastResort:  # prints warnings, which name what records name
        logging.lastResort.setFormatter(_PrintableFormatter())
    try:
        settle_home()
        _check_text(arguments)
        result = group.main(args=list(arguments), prog_name="harness", standalone_mode=False)
    except (UserError, RunError) as error:
        return _tell(error.exit_code, str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return BAD_INPUT
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "harness"
        message = " ".join(error.format_message().split()).rstrip(".")
        return _tell(BAD_INPUT, f"{message}; see `{where} --help`")
    except click.ClickException as error:
        return _tell(BAD_INPUT, error.format_message())
    except (KeyboardInterrupt, click.Abort):
        return _tell(INTERRUPTED, "interrupted; finished work is kept")
    except BrokenPipeError:  # the reader (head, less) has gone: nothing to tell, and nobody to tell it to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        sentence = f"'{error.filename}' cannot be used ({error.strerror}): name another path or mend this one"
        return _tell(BAD_INPUT, sentence)
    return result if isinstance(result, int) else 0


def main() -> None:
    """Run the command line of this process and end it, with a line about an exit code that make turns into its own."""
    part_files(sys.argv[1:])
    code = run_command_line(sys.argv[1:])
    if sys.argv[1:2] == [MAKE] and code in _MEANINGS:
        _tell(code, f"exit code {code}: {_MEANINGS[code]} (make itself ends with 2)")
    sys.exit(code)


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse bytes that are no text: they would end up in records, which are UTF-8."""
    for word in arguments:
        try:
            word.encode()
        except UnicodeEncodeError:
            readable = word.encode(errors="surrogateescape").decode(errors="replace")
            raise UserError(f"'{readable}' is not UTF-8: rename the file, or give it another name by a link") from None


def _tell(code: int, message: str) -> int:
    print(printable(f"harness: {message}"), file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    main()
