"""The command line. A command's module is imported only when the command is called."""

import importlib
import itertools

import click

from harness.base import __version__

# name: (task, module with a click command of that name, one line for --help and `make help`), a line each for make
COMMANDS = {
    "sweep": ("measure", "harness.cli.sweeps", "Plan, launch and report a scaling study: the main job."),
    "status": ("measure", "harness.cli.sweeps", "Tell how far a sweep is, from any terminal."),
    "cancel": ("measure", "harness.cli.sweeps", "End what a batch system still has of a sweep."),
    "report": ("measure", "harness.cli.sweeps", "Draw the report of a sweep from its records."),
    "explain": ("understand", "harness.cli.sweeps", "Say why a sweep does not scale: efficiencies, overheads, causes."),
    "trace": ("understand", "harness.cli.sweeps", "Write what every rank of a launch did when, for Perfetto."),
    "check": ("judge", "harness.cli.check", "Did it get worse? Train a baseline's commit and this one in turns."),
    "baseline": ("judge", "harness.cli.check", "Save, list and show baselines."),
    "compare": ("judge", "harness.cli.check", "Compare sweeps, commits, machines, presets or sync policies."),
    "history": ("judge", "harness.cli.check", "Draw a series over commits and find where it changed."),
    "paper": ("judge", "harness.cli.repeat", "Repeat the papers' experiments at the core counts this machine has."),
    "claims": ("judge", "harness.cli.repeat", "Judge the papers' published numbers by the launches that are here."),
    "predict": ("look ahead", "harness.cli.predict", "Predict beyond this machine; write points for Extra-P."),
    "reproduce": ("repeat", "harness.cli.repeat", "Launch again what was recorded, and judge what came out."),
    "bundle": ("repeat", "harness.cli.repeat", "Put sweeps into one archive that a stranger can check and repeat."),
    "run": ("yours", "harness.cli.train", "Run a TensorFlow script of your own, unmodified, on many ranks."),
    "train": ("yours", "harness.cli.train", "Train one workload on the ranks of this MPI world."),
    "data": ("yours", "harness.cli.machine", "List, fetch, verify, prepare, describe data sets; clean their cache."),
    "doctor": ("machine", "harness.cli.machine", "Tell which MPI, TensorFlow, cores, compiler and GPUs are there."),
    "probe": ("machine", "harness.cli.machine", "Measure what communication costs, and the best setting for it."),
    "bench": ("machine", "harness.cli.machine", "Measure the harness against its alternatives, side by side."),
    "site": ("machine", "harness.cli.machine", "List computing centres' files and check one against the live system."),
}

MAKE = "make"  # what the Makefile calls; not for people


class LazyGroup(click.Group):
    """A group that imports a command's module when it is called, not to list it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in (*COMMANDS, MAKE):
            return None
        module = COMMANDS[cmd_name][1] if cmd_name in COMMANDS else f"harness.cli.{MAKE}"
        command = getattr(importlib.import_module(module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for task, entries in itertools.groupby(COMMANDS.items(), key=lambda entry: entry[1][0]):
            with formatter.section(task.capitalize()):
                formatter.write_dl([(name, line) for name, (_, _, line) in entries], col_max=12)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="harness")
def main() -> None:
    """How well does synchronous TensorFlow training scale on this machine?"""
