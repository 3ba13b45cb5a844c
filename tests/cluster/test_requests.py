"""What a real Slurm is asked for, and what is refused before it is asked: no launch trains."""

from pathlib import Path

import pytest

from tests.cluster.conftest import Terminal, Untrained
from tests.cluster.slurm import Cluster
from tests.labs.slurm_sweeps import TINY

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def test_gpus_are_asked_for_by_node_and_given(untrained: Untrained, tmp_path: Path) -> None:
    template = tmp_path / "my.j2"
    block = '{% block setup %}{{ super() }}\necho "given:$CUDA_VISIBLE_DEVICES"\n{% endblock %}'
    template.write_text('{% extends "slurm.sh.j2" %}\n' + block)
    untrained.terminal.harness(
        *untrained.words("--gpus", "1..4", "--share-nodes", "--repeats", "1", "--template", str(template))
    )
    outputs = sorted((untrained.terminal.sweep_folder / "logs").glob("*.out"))
    given = {read.read_text().split("given:")[1].split()[0] for read in outputs}
    assert given == {"0", "0,1"}
    assert "4 done" in untrained.terminal.harness("status")


def test_what_cannot_run_is_refused_before_anything_is_submitted(terminal: Terminal, cluster: Cluster) -> None:
    before = len(cluster.jobs())
    said = terminal.harness(*TINY, "--nodes", "5..6", code=2)
    assert "needs 5 nodes, partition normal has 4" in said
    said = terminal.harness(*TINY, "--nodes", "1", "--partition", "nowhere", code=2)
    assert "--partition nowhere does not exist: known are normal" in said
    said = terminal.harness(*TINY, "--nodes", "1", "--walltime", "2:00:00", code=2)
    assert "asks for --walltime 2:00:00, partition normal allows 1:00:00" in said
    assert len(cluster.jobs()) == before
