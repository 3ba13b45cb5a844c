"""Rank program: `harness train` several times in one MPI world. Argument: a list of argument lists, as JSON.

Behind each, rank 0 prints OPENED and how many files of prepared data every rank opened in it, as JSON.
"""

import json
import sys

from harness.cli.train import train
from harness.comm.world import start

opened: list[str] = []
sys.addaudithook(lambda event, what: opened.append(str(what[0])) if event == "open" else None)
for arguments in json.loads(sys.argv[1]):
    opened.clear()
    train.main(arguments, prog_name="harness train", standalone_mode=False)
    counts = start().comm.gather(sum("/prepared/" in path for path in opened), root=0)
    if counts is not None:
        print("OPENED", json.dumps(counts), flush=True)
