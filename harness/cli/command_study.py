"""``harness study``: write a study's file from a command line or a recorded sweep, and the schema of such files."""

from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from harness.base import removal
from harness.base.current_user import UserPath
from harness.base.errors import UserError
from harness.base.files import user_errors
from harness.cli.command_sweep import sweep_command
from harness.cli.common_options import GroupedCommand, GroupedOption, parse_counts
from harness.cli.study_file import study_defaults, study_schema, study_settings
from harness.cli.sweep_argument import find_sweep
from harness.cli.terminal import echo
from harness.cli.training_options import build_workload, take_workload
from harness.schema.study_text import COUNTS, TABLES, StudyTables, counts_value, study_text


@click.group(name="study")
def study_command() -> None:
    """Write a study's file: the settings of a sweep, to be committed and run by `harness sweep study.toml`."""


_OF_A_SWEEP = [option for option in sweep_command.params if isinstance(option, GroupedOption) and not option.hidden]


@study_command.command(
    name="init",
    cls=GroupedCommand,
    params=list(_OF_A_SWEEP),
    brief=("--from", *(name for name in sweep_command.brief if name != "--dry-run")),
    examples=(
        "harness study init --dataset mnist --nodes 1..2",
        "harness study init higgs.toml --dataset higgs --nodes 1..8 --global-batch 64",
        "harness study init again.toml --from SWEEP --epochs 1",
    ),
)
@click.argument("study", type=UserPath(), default="study.toml")
@click.option("--from", "recorded", metavar="SWEEP", help="Begin with the settings of a recorded sweep.")
def init_command(study: Path, recorded: str | None, **options: Any) -> None:
    """Write STUDY, by default study.toml, from options of `harness sweep`, from a recorded sweep, or from both.

    Options of the command line come first. A file that is there is never written over.
    """
    tables: StudyTables = {table: {} for table in TABLES}
    remark = ""
    if recorded is not None:
        folder = find_sweep(recorded, options["results"])
        tables = _recorded_tables(folder)
        remark = f"From the recorded sweep {folder.name}."
    for table, settings in _given_tables().items():
        tables[table] |= settings
    _check(tables)
    text = study_text(tables, remark)
    _write_new(study, text)
    echo(text, nl=False)
    echo(f"\n{study}: `harness sweep {study}` measures it.")


def _write_new(study: Path, text: str) -> None:
    """Write `text` to the file `study`.

    Raises:
        UserError: something of that name is there, or it cannot be written.
    """
    with user_errors("study", study):
        study.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = study.open("x", encoding="utf-8")
        except FileExistsError as error:
            raise UserError(f"study '{study}' is there: name another file, or remove it first") from error
        try:
            with file:
                file.write(text)
        except BaseException:
            removal.remove_file(study)
            raise


def _recorded_tables(folder: Path) -> StudyTables:
    """Return the study of the sweep in `folder`, launched as it was last.

    Raises:
        UserError: there is no such record, or its layouts are of several commands.
    """
    from harness.schema.study_text import recorded_study
    from harness.schema.sweep_folder import SweepFolder
    from harness.sweep.submission_settings import read_submission, where_settings
    from harness.sweep.sweep_files import read_study

    files = SweepFolder(folder)
    studies = recorded_study(read_study(files).sweep)
    if len(studies) > 1:
        raise UserError(
            f"the layouts of sweep '{folder.name}' are of {len(studies)} commands, and a study has those of one: "
            "its page has a study for each"
        )
    (tables,) = studies
    submission = read_submission(files)
    tables["where"] = where_settings(submission)
    if submission.data_dir:
        tables["data"]["data-dir"] = submission.data_dir
    return tables


def _given_tables() -> StudyTables:
    """Return what the command line says, by table and key."""
    context = click.get_current_context()
    tables: StudyTables = {}
    for table in TABLES:
        settings = {}
        for key, option in study_settings(table).items():
            name = option.name or ""
            if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
                continue
            value = context.params[name]
            settings[key] = counts_value(value) if key in COUNTS else value
        tables[table] = settings
    return tables


def _check(tables: StudyTables) -> None:
    """Refuse a study whose settings are none of a sweep, before anything is written.

    Raises:
        UserError: naming the setting.
    """
    defaults = study_defaults(msgspec.toml.decode(study_text(tables)), "the study")
    values = sweep_command.make_context("sweep", [], default_map=defaults).params
    build_workload(take_workload(values))
    for key in COUNTS:
        text = values[key.replace("-", "_")]
        if text:
            parse_counts(key.upper(), text)


@study_command.command(name="schema")
def schema_command() -> None:
    """Print the JSON schema of a study's file, by which editors complete and check it."""
    echo(msgspec.json.format(msgspec.json.encode(study_schema()), indent=2).decode())
