"""Paper A's seven experiments: the one table of what the rooms that repeat, time or send them know of each."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """One experiment: its workload's parts, and its sizes.

    `weights_bytes` of the float32 weights are what one allreduce of a step carries. `rows` and `epochs` are the most
    that `harness paper` trains by default, so that all of it runs in minutes. `bench_rows` (all ranks together) are
    about the data set's own number, or fewer where an epoch would last longer than a second; `bench_rate` are rows
    per second and rank of a fast contender, from which the first number of epochs is chosen.
    """

    dataset: str
    model: str
    weights_bytes: int
    rows: int
    epochs: int
    bench_rows: int
    bench_rate: float

    @property
    def name(self) -> str:
        """The workload's name, ``mnist-dnn``."""
        return f"{self.dataset}-{self.model}"


# A CNN's row costs a hundred times a DNN's, so CNNs train on a part of their rows. On 2 cores three launches at 1 and 2
# ranks of each of the seven take 10 to 15 minutes together.
EXPERIMENTS = {
    one.name: one
    for one in (
        Experiment(
            dataset="mnist", model="dnn", weights_bytes=712_440,
            rows=60_000, epochs=5, bench_rows=51_200, bench_rate=200_000,
        ),
        Experiment(
            dataset="mnist", model="cnn", weights_bytes=13_098_536,
            rows=4_096, epochs=3, bench_rows=2_048, bench_rate=1_700,
        ),
        Experiment(
            dataset="adult", model="dnn", weights_bytes=180_408,
            rows=32_561, epochs=5, bench_rows=32_512, bench_rate=300_000,
        ),
        Experiment(
            dataset="acoustic", model="dnn", weights_bytes=122_412,
            rows=78_823, epochs=5, bench_rows=51_200, bench_rate=300_000,
        ),
        Experiment(
            dataset="cifar10", model="dnn", weights_bytes=2_542_840,
            rows=50_000, epochs=5, bench_rows=25_600, bench_rate=40_000,
        ),
        Experiment(
            dataset="cifar10", model="cnn", weights_bytes=17_037_096,
            rows=3_072, epochs=3, bench_rows=1_024, bench_rate=1_200,
        ),
        Experiment(
            dataset="higgs", model="dnn", weights_bytes=126_984,
            rows=200_000, epochs=5, bench_rows=51_200, bench_rate=300_000,
        ),
    )
}  # fmt: skip
