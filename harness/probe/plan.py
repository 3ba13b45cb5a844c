"""What a probe measures: message sizes and settings of the MPI library. Pure."""

from collections.abc import Sequence

from harness.base.errors import UserError
from harness.schema.claim import EXPERIMENTS
from harness.schema.message_cost import Setting

SMALLEST, LARGEST = 8, 64 * 2**20
DEFAULT = Setting(name="default", mca={})

# Open MPI's numbers of the algorithms in its component `tuned` (ompi_info --param coll tuned --level 9).
_ALGORITHMS = {
    1: "basic linear",
    2: "reduce and broadcast",
    3: "recursive doubling",
    4: "ring",
    5: "segmented ring",
    6: "Rabenseifner",
}


def message_sizes(largest: int = LARGEST) -> tuple[int, ...]:
    """Return doublings from 8 bytes to `largest`, and the sizes of the papers' networks among them.

    Raises:
        UserError: `largest` is too small for a line.
    """
    if largest < 1024:
        raise UserError(f"LARGEST={largest} is too small: use at least 1024 bytes")
    doublings = {SMALLEST << power for power in range(64) if SMALLEST << power <= largest}
    return tuple(
        sorted(doublings | {one.weights_bytes for one in EXPERIMENTS.values() if one.weights_bytes <= largest})
    )


def algorithm_settings() -> tuple[Setting, ...]:
    """Return one setting for each allreduce algorithm and component of Open MPI that can be chosen by name."""
    tuned = {"coll": "^han,adapt", "coll_tuned_use_dynamic_rules": "1"}
    algorithms = tuple(
        Setting(name=f"tuned, {name}", mca=tuned | {"coll_tuned_allreduce_algorithm": str(number)})
        for number, name in _ALGORITHMS.items()
    )
    return (
        Setting(name="tuned, own choice", mca={"coll": "^han,adapt"}),
        *algorithms,
        Setting(name="han", mca={"coll_han_priority": "100"}),
        Setting(name="sm", mca={"coll_sm_priority": "100"}),
    )


def parse_settings(texts: Sequence[str]) -> tuple[Setting, ...]:
    """Parse settings as users write them: ``pml=ob1 btl=self,sm``, one or more parameters each.

    Raises:
        UserError: a word is no NAME=VALUE.
    """
    settings = []
    for text in texts:
        words = [word.partition("=") for word in text.split()]
        if not words or not all(name and sign and value for name, sign, value in words):
            raise UserError(f"--mca '{text}' is no setting: write NAME=VALUE, several of them with blanks between")
        settings.append(Setting(name=" ".join(text.split()), mca={name: value for name, _, value in words}))
    return tuple(settings)
