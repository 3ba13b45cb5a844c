"""Growth models: exact forms are found, Extra-P agrees, bands cover, too few points are refused, all is printed."""

import json
import math
import shutil
import warnings
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from harness.analysis.growth import GROWING, LINEAR, Form, allreduce_forms, forms, grow
from harness.cli.common import plain
from harness.prediction.forecast import grow_points, grown_frame, hold_out, predict_first, read_prediction
from harness.prediction.network_cost import ALGORITHMS, BEST, Levels, Link, Uncertain, allreduce_seconds
from harness.prediction.step_model import Base, measured_factor
from harness.schema.sweep import Layout, Sweep
from tests.factories import make_launch, make_workload, write_run, write_study
from tests.simgrid import simulate_step
from tests.test_predict import SEVEN

DOUBLINGS = [1, 2, 4, 8, 16, 32]
LINKS = (Link(alpha_s=2e-6, beta_s_per_byte=1e-10), Link(alpha_s=2e-5, beta_s_per_byte=8e-10))
JITTER = tuple(np.random.default_rng(1).lognormal(0, 0.05, 2000))


def base(size: int = 712_440, **changes: Any) -> Base:
    facts = {"workload": make_workload(), "scaling": "weak", "ranks": 1, "rows": 6400, "bytes": size}
    return Base(**(facts | {"compute_s": 3e-4, "low_s": 3e-4, "high_s": 3e-4} | changes))


def points(counts: Any, compute: Any, skew: Any, wire: Any) -> pd.DataFrame:
    """Return 100 steps of an epoch at each count, as `growth.growth_points` has them."""
    parts = {"compute_seconds": compute, "input_seconds": 0.0, "skew_seconds": skew, "wire_seconds": wire}
    frame = pd.DataFrame({"ranks": counts, "threads": 1} | {name: 100 * np.array(of) for name, of in parts.items()})
    return frame.assign(seconds=frame[list(parts)].sum(axis=1))


@pytest.mark.parametrize("order", [(Fraction(0), 1), (Fraction(1), 0), (Fraction(1, 2), 1), (Fraction(-1), 0)])
def test_an_exact_form_is_found_and_goes_on(order: tuple[Fraction, int]) -> None:
    p = np.array(DOUBLINGS[1:], dtype=float)
    form = Form(order=order)
    values = form.columns(p) @ [2.0, 0.5]
    best = grow(p, values, values, forms()).best
    assert best.form == form and best.at([512.0]) == pytest.approx(form.columns(np.array([512.0])) @ [2.0, 0.5])
    assert grow(p, np.full(5, 3.0), np.full(5, 3.0), forms()).best.words == "3.00\u00a0s"


def test_the_bandwidth_of_a_ring_and_the_steps_of_rabenseifner_are_forms() -> None:
    for algorithm, counts in (("ring", [2, 3, 4, 6, 8]), ("rabenseifner", [2, 3, 4, 5, 6, 7, 8, 12, 16])):
        wire = allreduce_seconds(algorithm, counts, 1e6, Levels(network=LINKS[0]))
        best = grow(counts, wire, wire, allreduce_forms(counts, LINEAR)).best
        far = [64.0, 96.0]
        assert best.at(far) == pytest.approx(allreduce_seconds(algorithm, far, 1e6, Levels(network=LINKS[0])))


def test_what_grows_never_falls_below_nothing() -> None:
    p = np.array(DOUBLINGS[1:], dtype=float)
    falling = 10 - np.log2(p)
    for model in grow(p, falling, falling, forms()).models:
        assert (model.at(np.geomspace(2, 1e5)) >= 0).all(), model.words


def simulated(counts: Any, name: str, algorithm: str, link: Link, noise: float, random: Any) -> pd.DataFrame:
    """Return what a sweep would measure by the closed forms: the median of 12 launches that differ by `noise`."""
    size, compute = SEVEN[name]
    p = np.asarray(counts, dtype=float)

    def rough(deviation: float) -> Any:
        return np.exp(random.normal(0, 1.25 * deviation / math.sqrt(12), len(p)))

    wait = np.where(p > 1, compute * (measured_factor(JITTER, p) - 1), 0.0)
    wire = allreduce_seconds(algorithm, p, size, Levels(network=link))
    own = rough(noise)
    return points(counts, compute * own * rough(noise), wait * own * rough(3 * noise), wire * own * rough(2 * noise))


def scores(counts: list[int], noises: tuple[float, ...], names: tuple[str, ...]) -> tuple[list[float], list[bool]]:
    """Return error and cover eight times beyond the largest of `counts`, for all algorithms and links."""
    random, errors, covered = np.random.default_rng(1), [], []
    for noise in noises:
        for name in names:
            for link in LINKS:
                for algorithm in (*ALGORITHMS, BEST):
                    seen = simulated(counts, name, algorithm, link, noise, random)
                    far = simulated([8 * max(counts)], name, algorithm, link, noise, random).iloc[0]
                    (row,) = grown_frame(grow_points(seen, base(SEVEN[name][0])), [far["ranks"]]).to_dict("records")
                    errors.append(abs(row["epoch_s"] / far["seconds"] - 1))
                    covered.append(row["epoch_low_s"] <= far["seconds"] <= row["epoch_high_s"])
    return errors, covered


def test_eight_times_further_the_error_is_small_and_bands_cover() -> None:
    errors, covered = scores(DOUBLINGS, (0.005,), ("mnist-dnn", "higgs-dnn", "cifar10-cnn"))
    assert np.median(errors) <= 0.03 and np.mean(covered) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("counts", [DOUBLINGS, [1, 2, 3, 4, 5, 6, 7, 8, 12, 16], list(range(1, 17))])
def test_bands_cover_whatever_the_counts_and_the_noise(counts: list[int]) -> None:
    errors, covered = scores(counts, (0.0, 0.005, 0.02), tuple(SEVEN))
    assert np.median(errors) <= 0.03 and np.mean(covered) >= 0.9


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("smpirun") is None, reason="SimGrid is not installed (libsimgrid-dev)")
def test_simgrid_at_1024_ranks_is_within_the_bands_of_what_it_says_up_to_128() -> None:
    counts, errors, covered = [1, 2, 4, 8, 16, 32, 64, 128], [], []
    for name in ("mnist-dnn", "cifar10-cnn"):
        size, compute = SEVEN[name]
        for algorithm in ("rabenseifner", "recursive-doubling"):
            how: Any = {"size": size, "compute_s": compute, "link": LINKS[0], "algorithm": algorithm}
            waited = [simulate_step(ranks=p, jitter=JITTER, **how) if p > 1 else compute for p in (*counts, 1024)]
            even = np.array([simulate_step(ranks=p, **how) if p > 1 else compute for p in counts])
            wait = np.maximum(0.0, np.array(waited[:-1]) - even)
            growth = grow_points(points(counts, np.full(8, compute), wait, even - compute), base(size))
            (row,) = grown_frame(growth, [1024]).to_dict("records")
            errors.append(abs(row["step_s"] / waited[-1] - 1))
            covered.append(row["epoch_low_s"] <= 100 * waited[-1] <= row["epoch_high_s"])
    assert np.median(errors) <= 0.03 and np.mean(covered) >= 0.9, (errors, covered)


def test_points_that_cannot_carry_a_model_are_refused_with_the_reason() -> None:
    flat = np.full(6, 3e-4)
    few = grow_points(points(DOUBLINGS[:2], flat[:2], flat[:2], flat[:2]), base())
    assert "1\u00a0count above 1 rank" in few.refused and "at least 5" in few.refused and not few.parts
    twice = grow_points(points([1, 2, 2, 4, 8, 16], flat, flat, flat), base())
    assert "several layouts have the same ranks" in twice.refused
    mixed = points(DOUBLINGS, flat, flat, flat)
    mixed.loc[3, "threads"] = 2
    assert "threads" in grow_points(mixed, base()).refused
    assert hold_out(points(DOUBLINGS, flat, flat, flat), base()) is None  # 4 counts above 1 are left


def test_shares_of_the_batch_and_sync_policies_are_known_and_not_fitted() -> None:
    """Strong scaling with a global batch: computation shrinks; weights every 4 steps: a quarter of a sum each."""
    p = np.array(DOUBLINGS, dtype=float)
    wire = np.where(p > 1, 1e-4 + 2e-5 * np.log2(p), 0.0)
    asked = base(workload=make_workload(global_batch=64), scaling="strong")
    growth = grow_points(points(DOUBLINGS, 1e-4 + 4e-3 / p, 0 * p, wire), asked)
    (row,) = grown_frame(growth, [256]).to_dict("records")
    assert row["compute_s"] == pytest.approx(1e-4 + 4e-3 / 256) and row["allreduce_s"] == pytest.approx(2.6e-4)
    assert row["straggler_s"] == 0 and row["epoch_low_s"] < row["epoch_s"] < row["epoch_high_s"]
    every = base(workload=make_workload(sync="weights:4"))
    growth = grow_points(points(DOUBLINGS, np.full(6, 3e-4), 0 * p, wire / 4), every)
    wire_model = growth.parts["wire_seconds"].best
    assert wire_model.weights == pytest.approx([1e-4, 2e-5]) and wire_model.words.endswith(" + 20.0\u00a0µs log2(p)")
    alone = grow_points(points(DOUBLINGS, np.full(6, 3e-4), 0 * p, 0 * p), base(workload=make_workload(sync="none")))
    assert not alone.refused and grown_frame(alone, [1024])["epoch_s"].iloc[0] == pytest.approx(3e-2)


def test_extra_p_finds_the_same_growth() -> None:
    """Extra-P itself on the same data: exact forms are the same; under noise both go on to the same values."""
    pytest.importorskip("extrap", reason="Extra-P is not installed (package extrap)")
    from extrap.entities.coordinate import Coordinate
    from extrap.entities.measurement import Measurement
    from extrap.modelers.single_parameter.basic import SingleParameterModeler

    modeler = SingleParameterModeler()
    theirs = {tuple(block.simple_terms[k].exponent for k in range(len(block.simple_terms))) for block in
              modeler.hypotheses_building_blocks}  # fmt: skip
    assert len(modeler.hypotheses_building_blocks) == len(GROWING) and theirs
    random = np.random.default_rng(0)
    counts = np.array([2, 4, 8, 16, 32, 64], dtype=float)
    plain = tuple(form for form in forms() if form.order[0] >= 0)
    apart = {0.0: [], 0.01: []}  # type: dict[float, list[float]]
    for order in GROWING:
        for noise, found in apart.items():
            values = Form(order=order).columns(counts) @ [10.0, 1.0] * np.exp(random.normal(0, noise, len(counts)))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                measured = [
                    Measurement(Coordinate(p), None, None, [value]) for p, value in zip(counts, values, strict=True)
                ]
                said = float(modeler.model([measured])[0].hypothesis.function.evaluate(512.0))
            ours = float(grow(counts, values, values, plain).best.at([512.0])[0])
            found.append(abs(ours / said - 1))
    print({noise: (np.median(found), max(found)) for noise, found in apart.items()})
    assert max(apart[0.0]) < 1e-6 and np.median(apart[0.01]) < 0.05


def write_sweep(results: Path, counts: list[int], repeats: int = 3) -> None:
    """Write launches whose epoch is 1 s of computation shared out, and a sum that grows."""
    sweep = Sweep(workload=make_workload(), layouts=tuple(Layout(nodes=p) for p in counts), repeats=repeats)
    write_study(results / sweep.name, ranks=counts)
    for p in counts:
        for repeat in range(repeats):
            seconds = 1.0 / p + (0.01 * math.log2(p) + 0.05 if p > 1 else 0.0)
            share = 0.0 if p == 1 else 1 - 1 / p / seconds
            write_run(results / sweep.name, make_launch(p, repeat, seconds * (1 + repeat / 1000), sync=share))


@pytest.mark.slow
def test_growth_models_are_written_down_before_a_sweep_and_scored_in_its_report(tmp_path: Path) -> None:
    from tests.factories import write_report

    write_sweep(tmp_path, [1, 2, 4, 5, 10, 20])
    counts = (1, 2, 4, 5, 10, 20, 25)
    sweep = Sweep(workload=make_workload(), layouts=tuple(Layout(nodes=p) for p in counts), repeats=3)
    flat = Uncertain.exact(Levels(network=LINKS[0]))
    prediction = read_prediction(predict_first(sweep, tmp_path, flat, "as given").parent)
    assert prediction is not None and [point.ranks for point in prediction.growth] == list(counts)
    later = datetime.now(UTC) + timedelta(minutes=1)
    seconds = 1.0 / 25 + 0.05 + 0.01 * math.log2(25)
    late = make_launch(25, 0, seconds, sync=1 - 1 / 25 / seconds, started=later, ended=later + timedelta(minutes=1))
    write_run(tmp_path / sweep.name, late)
    page = write_report(tmp_path / sweep.name, tmp_path / "reports").read_text()
    assert (
        "By growth models of the measured parts" in page and "1 of 1 measured points lie within the 95 % band" in page
    )


def test_the_command_sets_both_predictions_beside_each_other(tmp_path: Path) -> None:
    from harness.cli.predict import predict as command

    write_sweep(tmp_path / "few", [1, 2, 4])
    write_sweep(tmp_path / "many", [1, 2, 4, 8, 16, 20, 25])
    common = ["--nodes", "1..64*2", "--network", "2e-6,1e-10", "--reports", str(tmp_path / "reports")]
    few = CliRunner().invoke(command, [*common, "--results", str(tmp_path / "few")], catch_exceptions=False)
    assert "mnist-dnn: no growth models: 2 counts above 1 rank" in plain(few.output)
    asked = [*common, "--results", str(tmp_path / "many"), "--json"]
    told = CliRunner().invoke(command, asked, catch_exceptions=False)
    many = plain(told.output)
    assert "growth models from 1, 2, 4, 8, 16, 20, 25 ranks" in many and "by growth models" in many
    assert "Fitted to the other counts alone they are" in many and "at 25 ranks, inside their band" in many
    page = plain((tmp_path / "reports/predict/index.html").read_text())
    assert "MNIST-DNN, growth models" in page and "MNIST-DNN: predicted epoch time" in page
    (said,) = json.loads(told.stdout)["predicted"]
    assert "epoch_s" in said["points"][0] and {"epoch_s", "epoch_low_s"} <= set(said["growth"]["points"][0])
    assert said["growth"]["held_out"]["ranks"] == 25 and len(said["growth"]["points"]) == 7
