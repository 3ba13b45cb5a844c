"""Sums by NCCL up to the device boundary: built, loaded, chosen, refused. No GPU is needed here."""

import subprocess
from pathlib import Path

import pytest

from harness.base.errors import RunError
from harness.base.processes import quiet_stderr
from harness.comm import nccl_reduction
from harness.comm.native.build import SUMS_BY_NCCL, build_operation
from harness.comm.nccl_reduction import GpuOfRank, open_nccl, reason_against, share_id, version_words
from harness.comm.reduction_choice import select
from harness.comm.world import World
from tests.labs.communicators import Alone
from tests.labs.sentences import refuses

pytestmark = pytest.mark.slow  # the operation is compiled

SOURCES = Path(__file__).parent / "nccl"
PARTS = Path(build_operation.__wrapped__.__code__.co_filename).parent
ID = b"an id\0with a zero".ljust(128, b"\0")


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a libnccl.so.2 that sums doubles of a single rank in host memory."""
    library = tmp_path_factory.mktemp("nccl") / "libnccl.so.2"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, SOURCES / "stand_in.c"], check=True)
    return library


@pytest.fixture
def loaded(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> nccl_reduction.NcclLibrary:
    """Return the C++ part with the stand-in for NCCL."""
    monkeypatch.setattr(nccl_reduction, "installed_nccl", lambda: stand_in)
    nccl_reduction.load_nccl.cache_clear()
    with quiet_stderr():
        return nccl_reduction.load_nccl()


def test_the_operations_are_for_gpus_and_refuse_a_processor(loaded: nccl_reduction.NcclLibrary) -> None:
    import tensorflow as tf
    from tensorflow.python.framework import kernels

    registered = kernels.get_registered_kernels_for_op("HarnessNcclAllreduce").kernel
    assert {kernel.device_type for kernel in registered} == {"GPU"}
    assert len(registered) == 4
    assert {name for kernel in registered for name in kernel.host_memory_arg} == {"sequence"}
    with tf.device("CPU:0"), pytest.raises(tf.errors.NotFoundError, match="device='GPU'"):
        loaded.operations.harness_nccl_open(id=ID, group=1, ranks=1, rank=0)


def test_the_library_is_loaded_at_run_time_and_says_its_version(loaded: nccl_reduction.NcclLibrary) -> None:
    assert loaded.version == "2.28.9"
    assert [version_words(number) for number in (21903, 23203)] == ["2.19.3", "2.32.3"]


def test_all_ranks_get_the_id_of_the_first(loaded: nccl_reduction.NcclLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    assert share_id(Alone(), loaded) == ID
    monkeypatch.setenv("STAND_IN_NO_ID", "1")
    with refuses(error=RunError):
        share_id(Alone(), loaded)


def test_a_group_loads_sums_scales_and_ends_its_calls_when_a_rank_is_lost(stand_in: Path, tmp_path: Path) -> None:
    import tensorflow as tf

    program = tmp_path / "one_rank"
    flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    sources = [SOURCES / "one_rank.cc", *(PARTS / name for name in SUMS_BY_NCCL.sources[:2])]
    folder = tf.sysconfig.get_lib()
    search = [f"-I{PARTS}", f"-Wl,-rpath,{folder}"]
    subprocess.run(["g++", "-O1", "-w", "-pthread", *search, "-o", program, *sources, *flags], check=True)
    lost = tmp_path / "lost"
    environment = {"STAND_IN_FAILS": str(lost)}
    reply = subprocess.run([program, stand_in, lost], env=environment, capture_output=True, text=True, check=False)
    assert reply.returncode == 0, reply
    missing, *lines = reply.stdout.splitlines()
    assert missing.startswith("/nowhere/libnccl.so.2: cannot open shared object file")
    assert lines == [
        "no communicator: NCCL says 'invalid argument'",
        "1 2 3",
        "0.5 1 1.5",
        "1 2 3",
        "10 lost a rank: NCCL says 'remote process exited or there was a network error'",
    ]


OWN = [GpuOfRank(has_gpu=True, place=("node1", f"0000:0{bus}:00.0")) for bus in (1, 2)]
NONE = GpuOfRank(has_gpu=False)
WITHOUT_NCCL = GpuOfRank(has_gpu=True, missing_because="libnccl.so.2: no such file")
ELSEWHERE = GpuOfRank(has_gpu=True, place=("node2", "0000:01:00.0"))


@pytest.mark.parametrize(
    ("gpus", "shared", "reason"),
    [
        ([NONE, NONE], False, None),
        (OWN, False, ""),
        ([OWN[0], ELSEWHERE], False, ""),
        ([OWN[0], NONE], False, "rank 1 has no GPU"),
        ([OWN[0], WITHOUT_NCCL], False, "libnccl.so.2: no such file (rank 1)"),
        ([OWN[0], OWN[0]], True, ""),
    ],
)
def test_nccl_is_taken_where_every_rank_has_a_gpu_of_its_own(
    gpus: list[GpuOfRank], shared: bool, reason: str | None
) -> None:
    assert reason_against(gpus, shared=shared) == reason


def test_ranks_that_share_a_gpu_are_named() -> None:
    reason = reason_against([*OWN, OWN[1]], shared=False)
    assert reason is not None
    assert reason.startswith("ranks 1 and 2 share a GPU")


def test_ranks_without_gpus_are_not_told_of_nccl() -> None:
    assert open_nccl(World(comm=Alone(), rank=0, size=1), shared=True) is None


def test_a_wrong_word_names_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_REDUCTION", "ncll")
    with refuses("nccl"):
        select(World(comm=None, rank=0, size=2), [1024])
