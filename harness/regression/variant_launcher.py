"""How the ranks of a variant start: asked in its own Python and environment, so that each has its own MPI library.

    python -m harness.regression.variant_launcher SWEEP_FILE

It prints a `VariantLaunch` as JSON: the mpirun of this Python, or the site's, for every layout of the sweep. What this
machine refuses is one sentence on standard error, with exit code 1.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import UserError
from harness.comm.mpi_library import find_mpi
from harness.schema.record import decode, encode
from harness.schema.sweep import Sweep
from harness.sweep.submission_settings import Submission


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantLaunch:
    """The `family` of the MPI library, and for each layout words and changed variables."""

    family: str
    words: tuple[tuple[str, ...], ...]
    environments: tuple[Mapping[str, str | None], ...]


def find_launch(sweep: Sweep) -> VariantLaunch:
    """Return how ranks of the layouts of `sweep` start here.

    Raises:
        UserError: there is no launcher, or a layout cannot run here.
    """
    scheduler = Submission().open(oversubscribe=sweep.oversubscribe)
    for layout in sweep.layouts:
        reason = scheduler.refusal(layout)
        if reason:
            raise UserError(f"{layout} cannot run here: it {reason}")
    return VariantLaunch(
        family=find_mpi().family,
        words=tuple(scheduler.launcher(layout).words for layout in sweep.layouts),
        environments=tuple(dict(scheduler.environment(layout)) for layout in sweep.layouts),
    )


def main(sweep_file: Path) -> None:
    """Answer one call; exit with a sentence where it is refused."""
    try:
        launch = find_launch(decode(sweep_file.read_bytes(), Sweep, sweep_file))
    except UserError as error:
        sys.exit(str(error))
    sys.stdout.write(encode(launch).decode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
