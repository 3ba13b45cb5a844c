"""No headline without its warnings: invalid launches, no training, more speedup than there can be."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.read_results import load_sweep
from harness.probe import probe_runner
from harness.probe.measuring_ranks import ProbeResult
from harness.probe.probe_runner import parse_settings
from harness.report.probe_answer import best_settings, probe_answer
from harness.why.known_causes import diagnose_sweep
from tests.labs.factories import (
    make_point,
    write_run,
    write_study,
)
from tests.labs.planted_causes import Machine, slower
from tests.labs.probes import make_probe
from tests.labs.sentences import says

BUSY = "other processes kept 1.2 cores of node1 busy"
SLOW_RANK = "a slow rank"


def test_a_probe_leaves_out_blocks_that_other_work_met(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    samples = make_probe({"default": (1e-5, 1e-9), "other": (1e-5, 1e-10)}).samples

    def measured(bad: int) -> probe_runner.ProbeSamples:
        done = {"default": 0, "other": 0}

        def measure(*arguments: object) -> tuple[dict[str, ProbeResult], dict[str, str]]:
            (setting,) = arguments[-1]  # type: ignore[misc]
            name = "other" if setting.mca else "default"
            number = done[name]
            done[name] += 1
            answer = ProbeResult(
                hosts=("node1", "node1"),
                mpi_library="Open MPI v5.0.11",
                series=tuple(one for setting, launch, one in samples if (setting, launch) == (name, number)),
                invalid=(BUSY,) if name == "default" and number < bad else (),
                notes=(),
            )
            return {setting.name: answer}, {}

        monkeypatch.setattr(probe_runner, "measure_settings", measure)
        monkeypatch.setattr(probe_runner, "wait_until_quiet", lambda say, force: 0.0)
        asked = probe_runner.ProbeSettings(launcher="mpirun -n 2", settings=parse_settings(["pml=other"]))
        return probe_runner.run_probe(asked, lambda line: None)

    quiet, half, busy = (measured(bad).probe for bad in (0, 4, 6))
    assert [len(one.by_setting[0].costs[0].sizes[0].launches) for one in (quiet, half, busy)] == [6, 2, 6]
    assert (quiet.invalid, half.invalid, busy.invalid) == ((), (), (BUSY,))
    (note,) = half.notes
    says(note, "blocks are left out", 4, 6, BUSY)
    assert best_settings(quiet, ["mnist-dnn"])["mnist-dnn"].environment
    assert not best_settings(half, ["mnist-dnn"])["mnist-dnn"].environment  # two blocks show nothing
    assert best_settings(busy, ["mnist-dnn"]) == {}
    answer = probe_answer(busy, tmp_path, {})
    assert answer.code == 3
    says(answer.sentence, "No times are valid", BUSY)
    assert "interval" not in answer.sentence


def test_what_other_work_met_is_diagnosed_only_where_nothing_else_is_there(tmp_path: Path) -> None:
    write_study(tmp_path, ranks=(2,))
    case = Machine(ranks=2, own=slower(1, 1.3)).case(np.random.default_rng(0))
    write_run(tmp_path, replace(case.run, point=make_point(2, 0), invalid=(BUSY,)))
    assert [one.cause for one in diagnose_sweep(load_sweep(tmp_path))] == [SLOW_RANK]
    even = Machine(ranks=2).case(np.random.default_rng(0))
    write_run(tmp_path, replace(even.run, point=make_point(2, 1)))
    assert diagnose_sweep(load_sweep(tmp_path)) == ()
