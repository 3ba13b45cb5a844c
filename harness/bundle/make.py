"""Put a bundle together: records, pages, scripts, code and words in one folder, then in one archive."""

import shlex
import shutil
import tempfile
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from harness.analysis.read_results import Loaded, load_sweep
from harness.base import __version__
from harness.base.errors import UserError
from harness.base.files import resource
from harness.bundle.appendix import appendix
from harness.bundle.archive import pack, write_sums
from harness.bundle.crate import WORKFLOW, write_crate
from harness.bundle.experiment import ANALYSIS_FILE, BundledSweep, analysis_seconds, experiment, measured_minutes, smoke
from harness.bundle.opened import MANIFEST, RECORDS, REPORTS, SCHEMA, Manifest, draw_pages, drawn_with
from harness.bundle.source import LOCK, add_code
from harness.report.document import latex, markdown
from harness.schema.identity import harness_identity
from harness.schema.message_cost import PROBES
from harness.schema.record import encode
from harness.schema.sweep import CHECKPOINTS, Sweep
from harness.sweep.store import RUNNING_FILE, is_locked

Command = Callable[[Sweep], str]
_ANEW = "--results again/results --reports again/reports"
_SHELL = "#!/bin/sh\n# {what}\n# Real data: HARNESS_DATA_DIR names the folder with the original files.\n"
_README = """# {name}

Records, raw samples, figures, code and instructions of {count}, made by mpi-tf-harness {version}.

- `appendix.md`, `appendix.tex`: artifact description and evaluation; begin there.
- `results/`: every launch's record and samples, scripts and logs; `reports/`: figures with their tables, pages.
- `smoke.sh BUNDLE`: the short variant; `{workflow}`: everything again.
- `source/`, `{lock}`: the code and what it stands on; `SHA256SUMS`, `ro-crate-metadata.json`.

`harness bundle verify` and `harness report --from` take the archive itself.
"""


def write_bundle(folders: Sequence[Path], target: Path, command: Command, *, offline: bool = False) -> Path:
    """Write the sweeps in `folders` to the archive `target` and return it; `command` gives a sweep's command.

    The same records, code and versions make the same bytes. With `offline` it has wheels of all that it needs.

    Raises:
        UserError: a sweep runs now or has no finished launch, or the archive cannot be written.
    """
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        raise UserError("SWEEP names one sweep twice, or two of one name: name each once")
    with tempfile.TemporaryDirectory(prefix="harness-bundle-") as temporary:
        root = Path(temporary)
        loaded = [_copy(folder, root / RECORDS / name) for folder, name in zip(folders, names, strict=True)]
        _copy_probes({folder.resolve().parent / PROBES for folder in folders}, root / RECORDS / PROBES)
        runs = [run for one in loaded for run in one.runs]
        moment = max(run.ended for run in runs)
        taken, judgements = draw_pages(root, names, moment)
        experiments = []
        for folder, one in zip(folders, loaded, strict=True):
            seconds = analysis_seconds(folder, taken[one.folder.name])
            minutes = measured_minutes(one.runs, seconds)
            assert one.study is not None
            page = root / REPORTS / one.folder.name
            experiments.append(experiment(one, command(one.study.sweep), minutes, page, root))
            if (folder / ANALYSIS_FILE).exists():
                shutil.copy(folder / ANALYSIS_FILE, one.folder)
        code = add_code(root, {run.provenance.commit for run in runs}, wheels=offline)
        words = appendix(target.name, experiments, judgements, code)
        _write(root, "appendix.md", markdown(words))
        _write(root, "appendix.tex", latex(words))
        _scripts(root, target.name, experiments)
        for name in (LOCK, "LICENSE", "CITATION.cff"):
            shutil.copyfile(resource(name), root / name)
        manifest = Manifest(
            schema=SCHEMA, name=target.name, moment=moment, sweeps=tuple(names),
            launches=sum(len(load_sweep(one.folder, every_code=True).runs) for one in loaded),
            harness=harness_identity(), drawn_with=drawn_with(),
        )  # fmt: skip
        (root / MANIFEST).write_bytes(encode(manifest))
        write_crate(root, target.name, experiments, moment)
        write_sums(root)
        pack(root, target, moment)
    return target


def _copy(folder: Path, target: Path) -> Loaded:
    """Copy a sweep's folder, without what only a command that works on it needs, and read the copy."""
    if is_locked(folder):
        raise UserError(f"sweep '{folder.name}' is being run now: wait for it or end it")
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns(".*", RUNNING_FILE, CHECKPOINTS))
    loaded = load_sweep(target)
    if not loaded.runs or loaded.study is None:
        raise UserError(f"sweep '{folder}' holds no finished launch of its last command: run it first")
    return loaded


def _copy_probes(places: set[Path], target: Path) -> None:
    """Copy the probes beside the sweeps: a report's reference rests on the newest of its machine."""
    for probe in sorted(probe for place in places for probe in place.glob("*")):
        if probe.is_dir() and not probe.name.startswith("."):
            shutil.copytree(probe, target / probe.name, dirs_exist_ok=True)


def _scripts(root: Path, bundle: str, experiments: Sequence[BundledSweep]) -> None:
    chosen, _ = smoke(experiments)
    launches = [f"{RECORDS}/{one.name}/{one.cheapest.point.folder}" for one in chosen]
    short = (
        "bundle=${1:?the archive of the bundle is missing: sh smoke.sh ../" + bundle + "}",
        "failed=0",
        'harness bundle verify "$bundle" || failed=1',
        'harness report --from "$bundle" --reports rebuilt || failed=1',
        *(f"{shlex.join(['harness', 'reproduce', launch])} --results again || failed=1" for launch in launches),
        "exit $failed",
    )
    # In a folder of its own: beside the bundle's records the same launches count as finished.
    commands = [*chain.from_iterable(one.command.splitlines() for one in experiments), "harness claims"]
    everything = ("failed=0", *(f"{line} {_ANEW} || failed=1" for line in commands), "exit $failed")
    for name, what, lines in (
        (
            "smoke.sh",
            "The short variant: the bundle checked, its figures drawn, a launch of each sweep again.",
            short,
        ),
        (WORKFLOW, "Everything again: the launches and the report of each sweep, then the claims.", everything),
    ):
        _write(root, name, _SHELL.format(what=what) + "\n".join(lines) + "\n")
    count = f"{len(experiments)} sweeps" if len(experiments) > 1 else f"the sweep {experiments[0].name}"
    about = {"name": bundle, "count": count, "version": __version__, "workflow": WORKFLOW, "lock": LOCK}
    _write(root, "README.md", _README.format(**about))


def _write(root: Path, name: str, text: str) -> None:
    (root / name).write_text(text, encoding="utf-8")
