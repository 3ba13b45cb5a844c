"""The options that describe a workload, the same for every command that trains."""

from pathlib import Path
from typing import Any

import click

from harness.base.errors import UserError, unknown
from harness.cli.common import Command, data_dir_option, field_options, split_words, with_options
from harness.schema.option import options as schema_options
from harness.schema.presets import PRESETS, resolve
from harness.schema.script import script_workload
from harness.schema.workload import Workload

_SCRIPT = (
    click.option(
        "--script", type=click.Path(path_type=Path), help="A TensorFlow script of your own; see `harness run`."
    ),
    click.option("--script-arguments", default="", help="Its arguments, quoted as in a shell."),
    click.option("--script-batch", default="per-rank", metavar="per-rank|global", help="What its batch size is of."),
)


def workload_options(command: Command) -> Command:
    """Add the options of a workload, one for each of its fields, of a script and ``--data-dir`` to a click command."""
    from harness import datasets

    registered = {"dataset": "|".join(datasets.names()), "preset": "|".join(PRESETS)}
    return with_options([*field_options(Workload, registered), *_SCRIPT, data_dir_option])(command)


def build_workload(options: dict[str, Any]) -> Workload:
    """Return the workload that the command line's `options` describe; unset ones come from the preset.

    Raises:
        UserError: not exactly one of a data set, a data file and a script is given, or a setting is wrong.
    """
    from harness import datasets

    given: dict[str, Any] = {field.name: options.get(field.name) for field, _ in schema_options(Workload)}
    if options.get("script"):
        return _build_script(options, given)
    data_file = given["data_file"]
    given["dataset"] = datasets.choose(given["dataset"], data_file)
    given["model"] = given["model"] or datasets.info(given["dataset"]).default_model
    given["preset"] = given["preset"] or "default"
    return resolve(**given | {"data_file": str(Path(data_file).resolve()) if data_file else None})


def _build_script(options: dict[str, Any], given: dict[str, Any]) -> Workload:
    """Return the workload of a user's script, which settles everything but the sync policy by itself."""
    batches = ("per-rank", "global")
    if options["script_batch"] not in batches:
        raise unknown("script batch", options["script_batch"], batches)
    for name, value in given.items():
        if value is not None and name != "sync":
            raise UserError(
                f"--{name.replace('_', '-')} does not go with --script: the script settles it, "
                "give it what it needs with --script-arguments"
            )
    return script_workload(
        options["script"],
        split_words("SCRIPT_ARGUMENTS", options["script_arguments"]),
        sync=given["sync"] or "gradients",
        batch=options["script_batch"],
    )
