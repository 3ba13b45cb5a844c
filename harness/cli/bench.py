"""`harness bench`: the harness measured against its alternatives, side by side."""

from pathlib import Path
from typing import Any

import click


@click.command(name="bench")
@click.option("--workloads", help="Some of the seven, such as mnist-dnn,mnist-cnn [default: all].")
@click.option("--rounds", type=int, default=3, show_default=True, help="Launches of every contender; 5 are better.")
@click.option("--rows", type=int, help="Training rows over all ranks, instead of each workload's own number.")
@click.option("--quick", is_flag=True, help="One round on few rows: shows that it works, not how fast it is.")
@click.option("--decoding", is_flag=True, help="Measure only how fast JPEGs are decoded, against bare tf.data.")
@click.option("--force", is_flag=True, help="Measure on a busy machine too; the page says so.")
@click.option("--limit", "limit_s", type=int, default=180, show_default=True, help="Seconds that a launch may take.")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the order of launches and of the weights."
)
@click.option(
    "--reports", type=click.Path(path_type=Path), default=Path("reports"), show_default=True, help="Folder of reports."
)
def command(workloads: str | None, rounds: int, quick: bool, decoding: bool, reports: Path, **options: Any) -> None:
    """Measure the harness against Keras fit and MultiWorkerMirroredStrategy, side by side.

    Every contender trains the same networks on the same synthetic rows, one core per rank. All of it takes about
    40 minutes; the machine should do nothing else meanwhile.
    """
    if decoding:
        from harness.base.cores import usable_cores
        from harness.bench.decoding import measure_decoding

        click.echo(str(measure_decoding(threads=usable_cores(), rounds=rounds)))
        return
    from harness.base.processes import interruptible
    from harness.bench.execute import run_bench
    from harness.bench.page import PAGE, write_bench
    from harness.bench.plan import EXERCISES, Settings

    names = tuple(dict.fromkeys(name.strip() for name in workloads.split(","))) if workloads else tuple(EXERCISES)
    settings = Settings(workloads=names, rounds=1 if quick else rounds, quick=quick, **options)
    page = ""
    with interruptible():
        for record in run_bench(settings, click.echo):
            page = write_bench(reports / "bench", record)
    click.echo(f"\n{page}")
    click.echo(str(reports / "bench" / PAGE))
