"""Rank program: `harness train` several times in one MPI world. Argument: a list of argument lists, as JSON."""

import json
import sys

from harness.cli.train import train

for arguments in json.loads(sys.argv[1]):
    train.main(arguments, prog_name="harness train", standalone_mode=False)
