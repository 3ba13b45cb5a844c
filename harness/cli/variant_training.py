"""The variants that a command trains in turns: what the words on its command line stand for, and their training."""

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.command_context import Context
from harness.base.errors import UserError, unknown
from harness.cli.common_options import (
    Command,
    budget_option,
    defaulted,
    option_group,
    split_words,
    take,
    threshold_option,
)
from harness.cli.first_use import fetch_for
from harness.cli.launch_options import refuse_elsewhere
from harness.cli.training_options import (
    LayoutOptions,
    WorkloadOptions,
    build_layouts,
    build_workload,
    layout_options,
    workload_options,
)
from harness.schema.option import options as schema_options
from harness.schema.sweep import Sweep
from harness.schema.workload import Workload

if TYPE_CHECKING:
    from harness.regression.variant_turns import Comparison
    from harness.regression.variants import Variant, VariantWord


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantOptions:
    """What a command line says of variants: workload and layouts that they share, the least difference (%), minutes."""

    workload: WorkloadOptions
    layouts: LayoutOptions
    threshold: float
    scheduler: str
    budget: float


def variant_options(command: Command) -> Command:
    """Add the options of variants to a click command; they arrive in its parameter `training`."""
    grouped = option_group(
        "training",
        partial(take, VariantOptions),
        threshold_option(0, "Least difference of interest, in %."),
        defaulted("--scheduler", default="auto", help="local: in a job of your own on a cluster."),
        budget_option,
    )(command)
    return workload_options(layout_options(grouped))


def are_variants(names: Sequence[str]) -> bool:
    """Return whether `names` are variants, which are trained, and not names of what is recorded.

    Raises:
        UserError: they are fewer than two, or some of them are of either kind.
    """
    from harness.regression.variants import is_variant

    if len(names) < 2:
        raise UserError(f"two or more variants, or two or more of what is recorded, are compared, not {len(names)}")
    trained = [name for name in names if is_variant(name)]
    recorded = [name for name in names if name not in trained]
    if trained and recorded:
        raise UserError(
            f"'{trained[0]}' is a variant to train and '{recorded[0]}' is none: name what is recorded only, or "
            "variants only"
        )
    return bool(trained)


def train_variants(names: Sequence[str], context: Context, options: VariantOptions) -> "Comparison":
    """Train the variants called `names` in turns, as the command's `options` (`variant_options`) say.

    Raises:
        UserError: a name is no variant or given twice, a variant does not run, or a scheduler has the nodes.
    """
    from harness.regression import variant_turns
    from harness.regression.variants import read_variant, variant_names

    refuse_elsewhere(options.scheduler)
    words = [read_variant(name) for name in names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"'{twice}' is given twice: to compare a stack with itself write env:A=1 env:A=2")
    with contextlib.ExitStack() as stack:
        variants = [
            replace(_variant(word, options, stack), name=name)
            for word, name in zip(words, variant_names(words), strict=True)
        ]
        # Only what has been checked is worth a download.
        variants = [replace(variant, sweep=_with_data(variant.sweep, context.data_dir)) for variant in variants]
        minutes = options.budget
        turns = variant_turns.VariantTurns(
            variants,
            folder=variant_turns.comparison_folder(context.results),
            data_dir=context.data_dir,
            budget_s=60 * minutes,
        )
        context.say(
            f"{', '.join(names)} train interleaved, at most {minutes:g} minutes; a line follows each block of "
            "launches, which takes a minute or more"
        )
        return variant_turns.run_variants(turns, threshold=options.threshold / 100, say=context.say)


def _variant(word: "VariantWord", options: VariantOptions, stack: contextlib.ExitStack) -> "Variant":
    """Return the side that `word` stands for; a checkout of its commit is removed with the `stack`."""
    from harness.regression.variants import Kind, Variant, check_python, checkout

    workload = options.workload
    match word.kind:
        case Kind.SETTINGS:
            return Variant(name=word.text, sweep=_sweep(_with(workload, _settings(word)), options.layouts))
        case Kind.PROGRAM:
            if word.value.endswith(".py"):
                program = replace(workload, script=Path(word.value))
            else:
                program = _with(workload, {"model": word.value})
            return Variant(name=word.text, sweep=_sweep(program, options.layouts))
    variant = Variant(name=word.text, sweep=_sweep(workload, options.layouts))
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


def _with(workload: WorkloadOptions, settings: Mapping[str, Any]) -> WorkloadOptions:
    return replace(workload, settings={**workload.settings, **settings})


def _sweep(workload_options: WorkloadOptions, layout_options: LayoutOptions) -> Sweep:
    """Return what a variant trains, whatever its data is."""
    from harness.sweep.submission_settings import Submission

    workload = build_workload(workload_options)
    layouts, _ = build_layouts(layout_options, Submission())
    return Sweep(workload=workload, layouts=layouts, repeats=1)


def _with_data(sweep: Sweep, data_dir: Path | None) -> Sweep:
    """Return `sweep` with the identity of its data, which is fetched if it is small and not here."""
    from harness import datasets

    fetch_for(sweep.workload, data_dir)
    return replace(sweep, data_id=datasets.locate(sweep.workload, data_dir).data_id)


def _settings(word: "VariantWord") -> dict[str, Any]:
    """Return the settings of a variant as the command line's options have them.

    Raises:
        UserError: one is no setting of a workload, or its value is of another type.
    """
    context = click.get_current_context()
    fields = {field.name for field, _ in schema_options(Workload)}
    parameters = {parameter.name: parameter for parameter in context.command.params if parameter.name in fields}
    settings = {}
    for name, value in word.pairs:
        parameter = parameters.get(name.replace("-", "_").lower())
        if parameter is None or parameter.name is None:
            raise unknown("setting", name, sorted(filter(None, parameters)))
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
    words = split_words("run:", word.value)
    if shutil.which(words[0]) is None:
        raise UserError(f"'{word.text}' starts '{words[0]}', which is not a program: give its path")
    return tuple(words)
