"""The command line. A command's module is imported only when the command is called."""

import importlib

import click

from harness.base import __version__

# name: (module with a click command of that name, one line for --help and `make help`)
COMMANDS = {
    "sweep": ("harness.cli.sweep", "Plan, launch, collect and report a scaling study: the main job."),
    "status": ("harness.cli.sweeps", "Tell how far a sweep is, from any terminal."),
    "cancel": ("harness.cli.sweeps", "End what a batch system still has of a sweep."),
    "site": ("harness.cli.machine", "List computing centres' files and check one against the live system."),
    "run": ("harness.cli.run", "Run a TensorFlow script of your own, unmodified, on many ranks."),
    "report": ("harness.cli.sweeps", "Draw the report of a sweep from its records."),
    "explain": (
        "harness.cli.explain",
        "Say why a sweep does not scale: efficiencies, overheads, and their proof.",
    ),
    "trace": ("harness.cli.explain", "Write what every rank of a launch did when, for Perfetto and Chrome."),
    "check": ("harness.cli.check", "Did it get worse? Compare the newest launches with a baseline."),
    "baseline": ("harness.cli.baseline", "Save, list and show baselines."),
    "noise": ("harness.cli.baseline", "Learn the noise floor from launches of one commit."),
    "compare": ("harness.cli.compare", "Compare runs, sweeps, commits, machines, presets or sync policies."),
    "history": ("harness.cli.compare", "Draw a series over commits and find where it changed."),
    "predict": ("harness.cli.predict", "Predict the curve beyond this machine; recommend a layout for a deadline."),
    "claims": ("harness.cli.claims", "Judge the papers' published numbers by the runs that are here."),
    "reproduce": ("harness.cli.reproduce", "Launch again what a record tells of, and judge what came out."),
    "bundle": ("harness.cli.bundle", "Put sweeps into one archive that a stranger can check and repeat."),
    "paper": ("harness.cli.paper", "Repeat the papers' experiments at the core counts this machine has."),
    "train": ("harness.cli.train", "Train one workload on the ranks of this MPI world."),
    "data": ("harness.cli.data", "List, fetch, verify, prepare, describe the data sets; clean their cache."),
    "doctor": ("harness.cli.machine", "Tell which MPI, TensorFlow, cores, memory, compiler and GPUs are in use."),
    "probe": ("harness.cli.machine", "Measure what communication costs, and the best setting for a workload."),
    "bench": ("harness.cli.machine", "Measure the harness against its alternatives, side by side."),
}

MAKE = "make"  # what the Makefile calls; not for people


class LazyGroup(click.Group):
    """A group that imports a command's module when it is called, not to list it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in (*COMMANDS, MAKE):
            return None
        module = COMMANDS[cmd_name][0] if cmd_name in COMMANDS else f"harness.cli.{MAKE}"
        command = getattr(importlib.import_module(module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="harness")
def main() -> None:
    """How well does synchronous TensorFlow training scale on this machine?"""
