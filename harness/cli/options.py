"""The options that describe a workload, the same for every command that trains."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from harness.base.errors import UserError, unknown
from harness.schema.presets import PRESETS, resolve
from harness.schema.script import script_workload
from harness.schema.sync import FORMS
from harness.schema.workload import Workload

Command = TypeVar("Command", bound=Callable[..., Any])

_FIELDS = (
    "loss",
    "optimizer",
    "learning_rate",
    "schedule",
    "decay",
    "rate_scaling",
    "warmup_epochs",
    "weight_decay",
    "label_smoothing",
    "init",
    "augment",
    "batch_per_rank",
    "global_batch",
    "drop_remainder",
    "epochs",
    "samples",
    "seed",
    "sync",
    "wire",
    "distribution",
    "data",
    "image_size",
    "classes",
    "input",
    "precision",
    "sync_bn",
    "xla",
)

_OPTIONS = (
    click.option("--dataset", help="adult, acoustic, mnist, cifar10, higgs or imagenet; see `harness data list`."),
    click.option("--data", "data_file", help="Train on a file of your own: .csv, .npz or .h5."),
    click.option("--model", help="dnn, cnn, resnet50, ... or package.module:function [default: the data set's own]."),
    click.option("--preset", default="default", show_default=True, help=f"Training settings: {', '.join(PRESETS)}."),
    click.option("--epochs", type=int, help="Passes over the training rows."),
    click.option("--samples", type=int, help="Training rows; under weak scaling, rows per rank."),
    click.option("--batch-per-rank", type=int, help="Rows per rank and step."),
    click.option("--global-batch", type=int, help="Rows per step over all ranks, instead of a batch per rank."),
    click.option("--sync", help=f"{FORMS}, or package.module:Class."),
    click.option("--wire", help="Type of the gradients that ranks exchange: float32, bf16 or fp16."),
    click.option("--optimizer", help="sgd, momentum, adagrad or adam."),
    click.option("--learning-rate", type=float),
    click.option("--schedule", help="Learning rate over the run: constant, cosine or exponential."),
    click.option("--decay", type=float, help="What --schedule exponential multiplies the rate by, every step."),
    click.option("--rate-scaling", help="none, or linear: the learning rate times the number of ranks."),
    click.option("--warmup-epochs", type=int, help="Epochs over which the scaled learning rate is reached."),
    click.option("--weight-decay", type=float, help="Factor of L2 regularisation."),
    click.option("--label-smoothing", type=float, help="Part of a label that is spread over all classes."),
    click.option("--loss", help="cross-entropy or squared-error."),
    click.option("--init", help="Initial weights: glorot, or fan-in for N(0, 1/fan_in)."),
    click.option("--augment", help="none; flip: mirror images at random; crop: also take random parts of image files."),
    click.option("--drop-remainder/--keep-remainder", default=None, help="Leave out each epoch's partial last batch."),
    click.option("--seed", type=int, help="Seed of the initial weights and of the order of rows."),
    click.option("--distribution", help="parallel (each rank reads its rows) or scatter (rank 0 sends them)."),
    click.option("--data-kind", "data", help="auto, real or synthetic."),
    click.option("--image-size", type=int, help="ImageNet: side of the images in pixels [default: the network's]."),
    click.option("--classes", type=int, help="ImageNet: classes of synthetic images [default: 1000]."),
    click.option("--input", help="ImageNet: resident (images held in memory) or files (decoded in every epoch)."),
    click.option("--precision", help="float32, mixed_float16 or mixed_bfloat16."),
    click.option("--sync-bn/--local-bn", default=None, help="Batch normalisation over all ranks, or in each."),
    click.option("--xla", is_flag=True, default=None, help="Compile the step with XLA, on GPUs."),
    click.option(
        "--script", type=click.Path(path_type=Path), help="A TensorFlow script of your own; see `harness run`."
    ),
    click.option("--script-arguments", default="", help="Its arguments, quoted as in a shell."),
    click.option("--script-batch", default="per-rank", help="Its batch size is per-rank, or global."),
    click.option(
        "--data-dir", type=click.Path(path_type=Path), envvar="HARNESS_DATA_DIR", help="Folder with the original files."
    ),
)


def workload_options(command: Command) -> Command:
    """Add the workload's options, and ``--data-dir``, to a click command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def build_workload(options: dict[str, Any]) -> Workload:
    """Return the workload that the command line's `options` describe; unset ones come from the preset.

    Raises:
        UserError: not exactly one of a data set, a data file and a script is given, or a setting is wrong.
    """
    from harness import datasets

    if options.get("script"):
        return _build_script(options)
    data_file = options.get("data_file")
    dataset = datasets.choose(options.get("dataset"), data_file)
    model = options.get("model") or datasets.info(dataset).default_model
    return resolve(
        dataset=dataset,
        model=model,
        preset=options["preset"],
        data_file=str(Path(data_file).resolve()) if data_file else None,
        **{field: options.get(field) for field in _FIELDS},
    )


def _build_script(options: dict[str, Any]) -> Workload:
    """Return the workload of a user's script, which settles everything but the sync policy by itself."""
    batches = ("per-rank", "global")
    if options["script_batch"] not in batches:
        raise unknown("script batch", options["script_batch"], batches)
    for field in ("dataset", "data_file", "model", *_FIELDS):
        if options.get(field) is not None and field != "sync":
            raise UserError(
                f"--{field.replace('_', '-')} does not go with --script: the script settles it, "
                "give it what it needs with --script-arguments"
            )
    return script_workload(
        options["script"],
        shlex.split(options["script_arguments"]),
        sync=options.get("sync") or "gradients",
        batch=options["script_batch"],
    )
