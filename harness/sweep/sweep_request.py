"""What the last command asked of a sweep, in the sweep's folder."""

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.schema.record import SCHEMA, decode_file, encode
from harness.schema.sweep import Skipped, Study, Sweep
from harness.schema.sweep_folder import SweepFolder


def write_study(files: SweepFolder, sweep: Sweep, skipped: tuple[Skipped, ...]) -> None:
    """Write what this command asks of the sweep; raise a UserError if the results folder cannot be written to."""
    write_atomic(files.study, encode(Study(schema=SCHEMA, sweep=sweep, skipped=skipped)))


def read_study(files: SweepFolder) -> Study:
    """Read what the last command asked of the sweep of `files`.

    Raises:
        UserError: there is no study, or it is damaged or of another schema version.
    """
    path = files.study
    study = decode_file(path, Study)
    if study is None:
        raise UserError(f"'{files.path}' holds no sweep: run 'harness sweep' first")
    if study.schema != SCHEMA:
        raise UserError(f"'{path}' has schema {study.schema}, this harness reads {SCHEMA}: run the sweep again")
    return study
