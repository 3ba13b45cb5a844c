"""Entry point: one sentence and an exit code for every error a user can mend."""

import os
import sys

import click

from harness.base.errors import RunError, UserError
from harness.cli import main as group


def main() -> None:
    """Run the command line: exit code 0, 1 (a run failed), 2 (bad input) or 130 (interrupted)."""
    try:
        result = group.main(prog_name="harness", standalone_mode=False)
    except UserError as error:
        _end(2, str(error))
    except RunError as error:
        _end(1, str(error))
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        _end(130, "interrupted; finished work is kept")
    except BrokenPipeError:  # the reader (head, less) has gone: nothing to tell, and nobody to tell it to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(result if isinstance(result, int) else 0)


def _end(code: int, message: str) -> None:
    print(f"harness: {message}", file=sys.stderr, flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
