"""What `harness compare` makes of its words: variants to train, or what is recorded, and never both."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.regression import variant_turns
from harness.regression.variant_turns import VariantTurns
from harness.regression.variants import Variant
from tests.labs.sentences import refuses

SMALL = ("--dataset", "mnist", "--data-kind", "synthetic", "--samples", "640", "--nodes", "1")


class _NothingTrainsError(Exception):
    pass


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Variant]:
    """Return the variants that a command would train, by their names."""
    variants: dict[str, Variant] = {}

    def keep(turns: VariantTurns, **_: object) -> None:
        variants.update({variant.name: variant for variant in turns.variants})
        raise _NothingTrainsError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(variant_turns, "run_variants", keep)
    return variants


def compare(*words: str, error: type[BaseException] = _NothingTrainsError) -> None:
    """Give the command, which ends with `error`."""
    result = CliRunner().invoke(main, ["compare", *words, *SMALL], standalone_mode=False)
    assert isinstance(result.exception, error), result.exception


def test_settings_and_variables_become_what_is_trained(planned: dict[str, Variant]) -> None:
    compare("here", "sync=weights:epoch,batch-per-rank=32", "env:OMPI_MCA_btl=tcp,self,A=", "run:nice -n 1")
    here, settings, environment, prefix = planned.values()
    assert (here.sweep.workload.sync, here.sweep.workload.batch_per_rank) == ("gradients", 64)
    assert (settings.sweep.workload.sync, settings.sweep.workload.batch_per_rank) == ("weights:epoch", 32)
    assert environment.variables == {"OMPI_MCA_btl": "tcp,self", "A": None}
    assert prefix.prefix == ("nice", "-n", "1")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["here"], [1]),
        (["here", "here"], ["here"]),
        (["here", "mnist-dnn-default"], ["here", "mnist-dnn-default"]),
        (["here", "sinc=none"], ["sinc", "sync"]),
        (["here", "batch-per-rank=many"], ["batch-per-rank=many"]),
        (["here", "run:no-such-program x"], ["no-such-program"]),
        (["here", "python:/no/such/python"], ["/no/such/python"]),
    ],
)
def test_what_cannot_be_trained_is_refused(planned: dict[str, Variant], words: list[str], parts: list[object]) -> None:
    with refuses(*parts):
        CliRunner().invoke(main, ["compare", *words, *SMALL], standalone_mode=False, catch_exceptions=False)
    assert not planned and not Path("results").exists()


def test_sync_policies_are_trained_by_the_same_engine(planned: dict[str, Variant]) -> None:
    words = ["policies", "sync=gradients", "sync=weights:epoch", "--target", "0.9", *SMALL]
    result = CliRunner().invoke(main, words, standalone_mode=False)
    assert isinstance(result.exception, _NothingTrainsError), result.exception
    assert [variant.sweep.workload.sync for variant in planned.values()] == ["gradients", "weights:epoch"]
