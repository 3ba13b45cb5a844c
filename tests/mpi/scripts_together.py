"""Run the scripts given as arguments one after the other in this process, each in a folder of its own."""

import os
import runpy
import sys
from pathlib import Path

for name in sys.argv[1:]:
    path = Path(name)
    folder = Path.cwd() / path.stem
    folder.mkdir(exist_ok=True)
    print("SCRIPT", path.stem, flush=True)
    here = Path.cwd()
    os.chdir(folder)
    runpy.run_path(name, run_name="__main__")
    os.chdir(here)
