"""What schedulers answer, known and unknown: an unknown state is no end, and a damaged answer is one sentence."""

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.sweep import job_nodes
from harness.sweep.scheduler_answers import State
from harness.sweep.schedulers import flux, pbs, slurm
from tests.labs.sentences import refuses
from tests.unseen import day_seed

_PBS = Path(__file__).parents[1] / "data/pbs"
_QUEUE = """\
CLUSTER: north
41|PENDING|Resources||0|2026-11-28T23:00:00|adult-0a1b2c3d
42|RUNNING|None|n[1-2]|0|2026-11-28T22:00:00|adult-1a1b2c3d
43_0|EXPEDITING|None||0|N/A|adult-2a1b2c3d
44|COMPLETED|None|n2|0|2026-11-28T21:00:00|adult-3a1b2c3d
"""
_SACCT = "41|PENDING|0:0|None assigned\n42|RUNNING|0:0|n1\n43_0|EXPEDITING|0:0|\n44|CANCELLED by 0|0:15|n2\n"
_USAGE = "CLUSTER: north\n7|COMPLETED|90|2|03:10.500||7200000\n7.0|COMPLETED|85|2|03:10|5266672K|7200000\n"
_SINFO = "normal*|4|2|8|4000|gpu:a100:2(S:0-1)|1:00:00\nlong|2|1+|4|4000|(null)|infinite\n"
_NODES = "n1|idle|none\nn3|down*|Not responding\n"
_SCONTROL = '{"nodes": [{"name": "n1", "tres": "cpu=4,gres/gpu=2", "partitions": ["normal"]}, {"gres": "gpu:2"}]}'
_FLUX = "41|SCHED||||h-a\n42|RUN|||n[1-2]|h-b\n43|MIGRATING|||n1|h-c\n44|INACTIVE|FAILED|3|n1|h-d\n"
_GOING = {"41", "42", "43", "43_0"}


def _pbs_states(answer: str) -> dict[str, State]:
    table = pbs.read_table(answer, "Jobs")
    return {job: pbs.read_state(attributes) for job, attributes in table.items()}


def _pbs_usages(answer: str) -> list[object]:
    return [pbs.read_pbs_usage(job) for job in pbs.read_table(answer, "Jobs").values()]


def _pbs_text_states(answer: str) -> dict[str, State]:
    return {job: pbs.read_state(attributes) for job, attributes in pbs.read_text_table(answer).items()}


_TEXT = """\
Job Id: 41.head
    Job_Name = adult-0a1b2c3d
    job_state = Q
    estimated.start_time = Sat Nov 28 23:00:00 2026

Job Id: 42.head
    Job_Name = adult-1a1b2c3d
    job_state = R
    exec_host = n1/0*2+n2/0*2
    resources_used.walltime = 00:01:02
    substate = 42
"""
_RUNNING_JSON = (_PBS / "qstat_running_held.json").read_text()
_ENDED_JSON = (_PBS / "qstat_history.json").read_text()
_PBSNODES = (_PBS / "pbsnodes.json").read_text()


def _queue_states(answer: str) -> dict[str, State]:
    return {job: state for job, (state, _) in slurm.read_queue(answer).items()}


def _flux_states(answer: str) -> dict[str, State]:
    return {job: state for job, (state, _) in flux.read_jobs(answer).items()}


# Each parser with an answer. Those of the first table tell states.
STATES: dict[str, tuple[Callable[[str], dict[str, State]], str]] = {
    "squeue": (_queue_states, _QUEUE),
    "sacct": (slurm.read_sacct, _SACCT),
    "flux jobs": (_flux_states, _FLUX),
    "qstat": (_pbs_states, _RUNNING_JSON),
    "qstat -f": (_pbs_text_states, _TEXT),
}
OTHERS: dict[str, tuple[Callable[[str], object], str]] = {
    "sacct, usage": (slurm.read_slurm_usage, _USAGE),
    "sinfo, partitions": (slurm.read_partitions, _SINFO),
    "sinfo, nodes": (slurm.read_slurm_nodes, _NODES),
    "scontrol": (slurm.read_node_gpus, _SCONTROL),
    "node list": (lambda text: list(job_nodes.expand(text)), "r[1-2]n[01-03,7]-ib,m3"),
    "qstat, usage": (_pbs_usages, _ENDED_JSON),
    "qstat, bare texts": (lambda text: _pbs_states(pbs.quote_bare_texts(text)), _RUNNING_JSON),
    "pbsnodes": (pbs.read_pbs_nodes, _PBSNODES),
}
_PIECES = (
    "|",
    "\n",
    ":",
    "",
    " ",
    "-",
    "9" * 30,
    "nan",
    "inf",
    "null",
    "{",
    "]",
    "[1-",
    "é",
    "\0",
    "٣",
    '"',
    "EXPEDITING",
)


def _mutated(answer: str, random_numbers: random.Random) -> str:
    """Return `answer` with one to three places deleted, doubled, replaced or cut off."""
    for _ in range(random_numbers.randint(1, 3)):
        begin = random_numbers.randrange(len(answer) + 1)
        end = min(len(answer), begin + random_numbers.choice((0, 1, 1, 2, 5, 20, 200)))
        piece = random_numbers.choice((*_PIECES, answer[begin:end] * 2))
        answer = answer[:begin] + piece + answer[end:]
        if random_numbers.random() < 0.1:
            answer = answer[: random_numbers.randrange(len(answer) + 1)]
    return answer


def _check_parsers(names: Iterable[str], count: int, seed: int) -> None:
    """Read `count` mutated answers: each is read or refused in one sentence, and no job that goes on has ended."""
    random_numbers = random.Random(seed)
    known = list(names)
    for number in range(count):
        name = known[number % len(known)]
        parse, answer = STATES[name] if name in STATES else OTHERS[name]
        text = _mutated(answer, random_numbers)
        try:
            found = parse(text)
        except UserError as error:
            assert "\n" not in str(error), (name, text)
            continue
        if name in STATES:
            assert isinstance(found, dict)
            before = STATES[name][0](answer)
            going = [job for job, state in before.items() if state.phase != "ended"]
            assert not [job for job in going if job in found and found[job].phase == "ended"], (name, text)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*STATES, *OTHERS])
def test_a_mutated_answer_is_no_stack_and_ends_no_job(name: str) -> None:
    _check_parsers([name], count=160, seed=day_seed())


@pytest.mark.slow
@pytest.mark.campaign
def test_ten_thousand_mutated_answers_are_no_stack_and_end_no_job() -> None:
    _check_parsers([*STATES, *OTHERS], count=10_000, seed=day_seed() + 1)


def test_a_state_that_is_not_known_is_no_end() -> None:
    assert _queue_states(_QUEUE)["43_0"].phase == "present"
    assert slurm.read_sacct(_SACCT)["43_0"].phase == "present"
    assert _flux_states(_FLUX)["43"].phase == "present"
    assert pbs.read_state({"job_state": "M"}).phase == "present"  # moved to another server
    assert pbs.read_state({}).phase == "present"


def test_slurms_line_of_a_cluster_is_no_job() -> None:
    states = _queue_states(_QUEUE)
    assert set(states) == {"41", "42", "43_0", "44"}
    assert states["41"].starts == "2026-11-28T23:00:00"
    assert slurm.read_slurm_usage(_USAGE)["7"].nodes == 2


def test_a_line_that_cannot_be_read_is_quoted() -> None:
    with refuses("squeue", "'41|PENDING|x'"):
        _queue_states("41|PENDING|x\n")
    with refuses("sinfo", "normal*|four|2|8|4000|(null)|1:00:00"):
        slurm.read_partitions("normal*|four|2|8|4000|(null)|1:00:00\n")


def test_of_two_lines_for_a_job_the_one_that_goes_on_counts() -> None:
    ended, running = "7|COMPLETED|None|n1|0|N/A|h-a\n", "7|RUNNING|None|n1|0|N/A|h-a\n"
    for answer in (ended + running, running + ended):
        assert _queue_states(answer)["7"].phase == "running"


def test_vnodes_of_a_host_are_one_node() -> None:
    vnode = {"host": "n1", "ncpus": 16, "ngpus": 1, "mem": "64gb"}
    whole = {"host": "n1", "ncpus": 0}
    table = {"n1": whole, "n1[0]": vnode, "n1[1]": vnode, "n2[0]": vnode | {"host": "n2"}}
    nodes = {name: {"state": "free", "resources_available": resources} for name, resources in table.items()}
    limit, ill = pbs.read_pbs_nodes(json.dumps({"nodes": nodes}))
    assert limit is not None
    assert (limit.nodes, limit.cores_per_node, limit.numa_domains, limit.gpus_per_node) == (2, 32, 2, 2)
    assert limit.memory_mb == 128 * 1024
    assert not ill
