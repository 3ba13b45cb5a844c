"""`harness sweep`: the main job, from data to a report."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.options import build_workload, workload_options
from harness.errors import RunError

if TYPE_CHECKING:
    from harness.sweep.execute import Plan


@click.command(name="sweep")
@workload_options
@click.option("--nodes", help="Node counts: 1..8, 1..64*2 (doublings) or 1,2,4 [default: doublings up to the cores].")
@click.option("--ranks-per-node", type=int, default=1, show_default=True, help="MPI ranks on a node.")
@click.option("--threads", type=int, default=1, show_default=True, help="Cores, and TensorFlow threads, of a rank.")
@click.option("--repeats", type=int, default=3, show_default=True, help="Launches of each layout; 6 give an interval.")
@click.option("--scaling", default="strong", show_default=True, help="strong (the same rows) or weak (rows per rank).")
@click.option("--shares", help="Unequal parts of the rows, one per rank: 2:1:1.")
@click.option("--oversubscribe", is_flag=True, help="Run layouts with more ranks than cores: never valid for timing.")
@click.option("--dry-run", is_flag=True, help="Write the scripts, print the table, launch nothing.")
@click.option(
    "--results", type=click.Path(path_type=Path), default=Path("results"), show_default=True, help="Folder of records."
)
@click.option(
    "--reports", type=click.Path(path_type=Path), default=Path("reports"), show_default=True, help="Folder of reports."
)
def command(
    nodes: str | None,
    shares: str | None,
    dry_run: bool,
    results: Path,
    reports: Path,
    data_dir: Path | None,
    **options: Any,
) -> None:
    """Plan, launch, collect and report a scaling study; the last line is the report's path.

    On one machine a core stands for a node. The same command again runs only what is missing or failed.
    """
    from harness.spec.ranges import parse_counts
    from harness.sweep.plan import build_sweep, parse_shares

    sweep = build_sweep(
        build_workload(options),
        nodes=parse_counts("NODES", nodes or _default_nodes(options["ranks_per_node"] * options["threads"])),
        data_dir=data_dir,
        shares=parse_shares(shares) if shares else None,
        **{name: options[name] for name in ("ranks_per_node", "threads", "repeats", "scaling", "oversubscribe")},
    )
    if dry_run:
        from harness.sweep.execute import write_scripts

        _print_plan(write_scripts(sweep, data_dir=data_dir, results=results))
        return
    from harness.sweep.execute import run_sweep

    _run_and_report(lambda: run_sweep(sweep, data_dir=data_dir, results=results), results / sweep.name, reports)


def _default_nodes(cores_per_node: int) -> str:
    """Return the doublings of nodes that this machine's cores can stand for."""
    from harness.comm.cores import usable_cores

    return f"1..{max(1, usable_cores() // max(1, cores_per_node))}*2"


def _run_and_report(run: Callable[[], Path], folder: Path, reports: Path) -> None:
    """Run the sweep and report what there is, also when some launches failed."""
    try:
        run()
    except RunError:
        if any(folder.glob("*/run.json")):
            click.echo(f"report of what has finished: {_report(folder, reports)}")
        raise
    click.echo(_report(folder, reports))


def _report(folder: Path, reports: Path) -> Path:
    from harness.report.sweep_page import write_report

    return write_report(folder, reports)


def _print_plan(plan: "Plan") -> None:
    from harness.sweep.jobs import JOBS

    for number, point in enumerate(plan.missing, start=1):
        layout = point.layout
        click.echo(f"{number:4}  {layout}, repeat {point.repeat}: {layout.ranks} ranks, {layout.cores} cores")
    click.echo(f"scripts, in launch order: {plan.folder / JOBS}")
