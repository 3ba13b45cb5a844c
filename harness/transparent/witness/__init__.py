"""The witness: one more process, which runs the script alone and undivided at the same time as the ranks.

Rank 0 starts it, and compares the averaged gradients of the first steps of each training, the numbers that these steps
return, the script's variables and what it prints and writes with the witness's. The comparison needs no knowledge of
what a script does: it shows whatever trains differently on parts of a batch than on whole batches. `NoWitness` is the
interface, and what a launch without a witness has.
"""

from harness.transparent.witness.observation import measures
from harness.transparent.witness.observed_rank import start_witness
from harness.transparent.witness.peer_rank import STEPS, Alone, NoWitness, PeerRank
from harness.transparent.witness.witness_process import enter

__all__ = ["STEPS", "Alone", "NoWitness", "PeerRank", "enter", "measures", "start_witness"]
