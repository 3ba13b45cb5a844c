"""What a stranger reads and runs in a bundle: its README, the short variant, everything again."""

from collections.abc import Sequence
from pathlib import Path

from harness.analysis import units
from harness.analysis.launch_frames import launch_frame
from harness.base import __version__
from harness.base.record_words import shell_line
from harness.bundle.archive import RECORDS
from harness.bundle.bundled_sweep import BundledSweep, execution_seconds, smoke
from harness.bundle.repetition import LOSS_BOUND
from harness.bundle.source_code import LOCK, BundledCode
from harness.report.answer import plain
from harness.report.sweep_facts import data_facts, machine_facts, workload_facts

_AGAIN = "--results again/results --reports again/reports"
_SMOKE = "The short variant: the bundle checked, its figures drawn, a launch of each sweep again."
_EVERYTHING = "Everything again: the launches and the report of each sweep, then the claims."
_HEADER = "#!/bin/sh\n# {purpose}\n# Real data: HARNESS_DATA_DIR names the folder with the original files.\n"
_README = """# {name}

Records, raw samples, figures, code and instructions of {count}, made by mpi-tf-harness {version}.

- `results/`: every launch's record and samples, scripts and logs; `reports/`: figures with their tables, pages.
- `smoke.sh BUNDLE`: the short variant, with `--trust` behind it where launches run code of the authors' own;
  `{workflow}`: everything again.
- `source/`, `{lock}`: the code and what it stands on; `SHA256SUMS`.

{sweeps}

## Set-up

Python 3.11 or newer on Linux, and a network for the packages. Without one: `pip download --require-hashes -r {lock} -d
wheels` on a machine of the same kind, then `--no-index --find-links wheels` with the installation.

```sh
{setup}
```

`harness bundle verify` and `harness bundle redraw` take the archive itself. The source:

{sources}

## What to expect

- Weights: the same bit for bit where source, versions, MPI library, reduction and processor are those recorded, with
  one thread a rank and no GPU; else they are not compared.
- Training loss: every epoch within {loss_bound} of the recorded one.
- Test accuracy: within the chance of so many test rows (binomial, 95 %).
- Epoch time: compared on the recorded machine only, within 95 % of repetitions.
- The published claims that these launches support, and those they do not: `reports/claims/index.html`.

`harness reproduce` says each of these in a line with a verdict. Exit code 0 of `{workflow}`: every launch has a record
with valid times.
"""
WORKFLOW = "reproduce.sh"


def write_instructions(root: Path, bundle: str, sweeps: Sequence[BundledSweep], code: BundledCode) -> None:
    """Write README.md and both scripts of the archive `bundle`, whose files, with its `code`, lie in `root`."""
    readme = _README.format(
        name=bundle,
        count=f"{len(sweeps)} sweeps" if len(sweeps) > 1 else f"the sweep {sweeps[0].name}",
        version=__version__,
        workflow=WORKFLOW,
        lock=LOCK,
        sweeps="\n\n".join(map(_found, sweeps)),
        setup="\n".join(_setup_commands(bundle, code)),
        sources="\n".join(f"- {text}" for text in code.descriptions),
        loss_bound=units.percent(LOSS_BOUND),
    )
    (root / "README.md").write_text(plain(readme), encoding="utf-8")
    launches = [f"{RECORDS}/{sweep.name}/{sweep.cheapest.point.folder}" for sweep in smoke(sweeps)]
    smoke_script = [
        'if [ -z "${1-}" ]; then',
        f"  {shell_line(['echo', f'the archive of the bundle is missing: sh smoke.sh ../{bundle}'])} >&2",
        "  exit 2",
        "fi",
        "bundle=$1",
        "shift  # what is left is --trust, where a launch runs code of the authors' own",
        "failed=0",
        'harness bundle verify "$bundle" || failed=1',
        'harness bundle redraw "$bundle" --reports rebuilt || failed=1',
        *(f'{shell_line(["harness", "reproduce", launch])} --results again "$@" || failed=1' for launch in launches),
        "exit $failed",
    ]
    _write_script(root / "smoke.sh", _SMOKE, smoke_script)
    minutes = sum(execution_seconds(sweep.loaded.runs) for sweep in sweeps) / 60
    length = f"echo 'The launches took {minutes:.1f} minutes as recorded.'"
    commands = [*(line for sweep in sweeps for line in sweep.command.splitlines()), "harness claims"]
    # In a folder of its own: beside the bundle's records the same launches count as finished.
    everything = ["failed=0", *(f"{command} {_AGAIN} || failed=1" for command in commands), "exit $failed"]
    _write_script(root / WORKFLOW, _EVERYTHING, [length, *everything])


def _setup_commands(name: str, code: BundledCode) -> list[str]:
    """Return the commands that unpack the archive `name` and install the software in it."""
    return [
        shell_line(["tar", "xzf", name]),
        shell_line(["cd", name.removesuffix(".tar.gz")]),
        "python3 -m venv .venv",
        ". .venv/bin/activate",
        f"pip install --no-deps --require-hashes -r {LOCK}",
        *code.commands,
    ]


def _found(sweep: BundledSweep) -> str:
    """Return what a sweep found, what it does not show, and where and how long it ran."""
    runs = sweep.loaded.runs
    launches = launch_frame(runs, sweep.loaded.epochs)
    facts = [*machine_facts(sweep.runs), *data_facts(sweep.runs, launches)]
    facts += workload_facts(sweep.runs[0].point.workload, sweep.runs)
    took = f"{units.plural(len(runs), 'launch')}, {execution_seconds(runs) / 60:.1f} minutes as recorded"
    lines = [
        *(f"- It does not show: {limit}" for limit in sweep.limits),
        f"- Launched: {took}",
        *(f"- {fact.name}: {fact.value}" for fact in facts),
    ]
    return f"## {sweep.name}\n\n{sweep.answer}\n\n" + "\n".join(lines)


def _write_script(path: Path, purpose: str, lines: Sequence[str]) -> None:
    path.write_text(_HEADER.format(purpose=purpose) + "\n".join(lines) + "\n", encoding="utf-8")
