"""``harness compare``: what is recorded (sweeps, baselines, launches), or variants that are trained in turns."""

import contextlib
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.command_context import Context
from harness.base.errors import UserError, unknown
from harness.cli.answer_output import answering, format_options
from harness.cli.common_options import GroupedCommand, budget_option, context_options, defaulted, refuse_given
from harness.cli.first_use import fetch_for
from harness.cli.launch_options import refuse_elsewhere
from harness.cli.sweep_argument import find_measurement
from harness.cli.training_options import build_layouts, build_workload, layout_options, workload_options
from harness.report.answer import Answer
from harness.schema.option import options as schema_options
from harness.schema.workload import Workload

if TYPE_CHECKING:
    from harness.regression.variants import Variant, VariantWord
    from harness.schema.sweep import Sweep


@click.command(name="compare", cls=GroupedCommand)
@click.argument("sweep", nargs=-1, metavar="A B [C]...")
@defaulted("--practical", type=click.FloatRange(0, 50), default=3.0, help="Difference, in %.")
@defaulted("--scheduler", default="auto", help="local: in a job of your own on a cluster.")
@budget_option
@workload_options
@layout_options
@format_options
@context_options("results", "baselines", "reports", "data_dir", measures=True)
@answering
def compare_command(
    sweep: tuple[str, ...], practical: float, scheduler: str, budget: float, context: Context, **options: Any
) -> Answer:
    """Compare B, C, ... with A. What is recorded is read; variants are trained in turns on this machine.

    Recorded are baselines, sweeps, launches, or commits of a sweep (SWEEP@COMMIT). They may differ in anything that
    leaves the rows of an epoch the same; what differs is listed.

    A variant is one of: here (as it is), commit:COMMIT of the harness, a script (.py) or model
    (package.module:function) of yours, a setting (sync=weights:epoch), env:NAME=VALUE (nothing behind = unsets),
    python:PATH (of another environment, with its own TensorFlow and MPI), run:COMMAND (put before each rank's Python).
    Several settings or variables have commas. Workload and layouts are given as for `harness sweep`. They train in
    turns until it is sure what differs by --practical or more. The last line is the page's path.
    """
    from harness.regression.variants import is_variant

    trained = [is_variant(name) for name in sweep]
    if len(sweep) < 2:
        raise UserError(f"compare needs two or more variants, or two or more of what is recorded, not {len(sweep)}")
    if all(trained):
        refuse_elsewhere(scheduler)
        return _compare_variants(sweep, practical / 100, 60 * budget, context, options)
    if any(trained):
        recorded = sweep[trained.index(False)]
        raise UserError(
            f"'{sweep[trained.index(True)]}' is a variant to train and '{recorded}' is none: name what is recorded "
            "only, or variants only"
        )
    reason = "sweeps, baselines and launches are compared as they are recorded, and nothing is trained"
    refuse_given(reason, "budget", "scheduler", "data_dir", *options)
    return _compare_recorded(sweep, practical / 100, context)


def _compare_recorded(names: tuple[str, ...], practical: float, context: Context) -> Answer:
    """Return what sets the recorded measurements called `names` against the first of them."""
    from harness.regression.checks import compare_measurements
    from harness.regression.measurement import without
    from harness.report.compare_answer import comparison_answer

    first, *others = (find_measurement(name, results=context.results, baselines=context.baselines) for name in names)
    compared = [first]
    rows = []
    left_out = []
    for side, measurement in zip(names[1:], others, strict=True):
        distinct = without(measurement, first)
        if not distinct.launches:
            raise UserError(f"'{side}' and '{names[0]}' are the same launches: name another sweep, or measure again")
        compared.append(distinct)
        rows.append(compare_measurements(first, distinct, practical=practical))
        left_out.append(len(measurement.launches) - len(distinct.launches))
    return comparison_answer(names, compared, rows, left_out, shlex.join(["harness", "compare", *names]))


def _compare_variants(
    names: tuple[str, ...], practical: float, budget_s: float, context: Context, options: dict[str, Any]
) -> Answer:
    """Train the variants called `names` in turns, and return what sets each against the first."""
    from harness.cli.common_options import given_command
    from harness.regression.variant_turns import VariantTurns, comparison_folder, run_variants
    from harness.regression.variants import read_variant
    from harness.report.compare_answer import variants_answer

    words = [read_variant(name) for name in names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"'{twice}' is given twice: to compare a stack with itself write env:A=1 env:A=2")
    with contextlib.ExitStack() as stack:
        variants = [_variant(word, context.data_dir, options, stack) for word in words]
        turns = VariantTurns(
            variants, folder=comparison_folder(context.results), data_dir=context.data_dir, budget_s=budget_s
        )
        context.say(
            f"{', '.join(names)} train in turns, at most {budget_s / 60:g} minutes; a line follows each block of "
            "launches, which takes a minute or more"
        )
        found = run_variants(turns, practical=practical, say=context.say)
    return variants_answer(found, given_command())


def _variant(
    word: "VariantWord", data_dir: Path | None, options: dict[str, Any], stack: contextlib.ExitStack
) -> "Variant":
    """Return the side that `word` stands for; a checkout of its commit is removed with the `stack`."""
    from harness.regression.variants import Kind, Variant, check_python, checkout

    match word.kind:
        case Kind.SETTINGS:
            return Variant(name=word.text, sweep=_sweep(options | _settings(word), data_dir))
        case Kind.PROGRAM:
            program = {"script": Path(word.value)} if word.value.endswith(".py") else {"model": word.value}
            return Variant(name=word.text, sweep=_sweep(options | program, data_dir))
    variant = Variant(name=word.text, sweep=_sweep(options, data_dir))
    match word.kind:
        case Kind.COMMIT:
            tree, commit = stack.enter_context(checkout(word.value))
            return replace(variant, tree=tree, commit=commit)
        case Kind.ENVIRONMENT:
            return replace(variant, variables={name: value or None for name, value in word.pairs})
        case Kind.PYTHON:
            return replace(variant, python=check_python(word.value))
        case Kind.PREFIX:
            return replace(variant, prefix=_prefix(word))
    return variant


def _sweep(options: dict[str, Any], data_dir: Path | None) -> "Sweep":
    """Return what the command line's `options` have a variant train."""
    from harness.sweep.plan import build_sweep
    from harness.sweep.submission_settings import Submission

    workload = build_workload(options)
    layouts, _ = build_layouts(options | {"oversubscribe": False}, Submission())
    fetch_for(workload, data_dir)
    return build_sweep(workload, layouts=layouts, repeats=1, data_dir=data_dir)


def _settings(word: "VariantWord") -> dict[str, Any]:
    """Return the settings of a variant as the command line's options have them.

    Raises:
        UserError: one is no setting of a workload, or its value is of another type.
    """
    context = click.get_current_context()
    fields = {field.name for field, _ in schema_options(Workload)}
    known = {parameter.name: parameter for parameter in context.command.params if parameter.name in fields}
    settings = {}
    for name, value in word.pairs:
        parameter = known.get(name.replace("-", "_").lower())
        if parameter is None or parameter.name is None:
            raise unknown("setting", name, sorted(filter(None, known)))
        try:
            settings[parameter.name] = parameter.type_cast_value(context, value)
        except click.BadParameter as error:
            raise UserError(f"{name}={value}: {error.message}") from error
    return settings


def _prefix(word: "VariantWord") -> tuple[str, ...]:
    """Return the words of a variant that starts each rank's Python by another program.

    Raises:
        UserError: a quotation is not closed, or there is no such program.
    """
    import shutil

    from harness.cli.common_options import split_words

    words = split_words("run:", word.value)
    if shutil.which(words[0]) is None:
        raise UserError(f"'{word.text}' starts '{words[0]}', which is not a program: give its path")
    return tuple(words)
