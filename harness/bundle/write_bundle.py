"""Write a bundle: records, pages, scripts, code and words in one folder, then in one archive."""

import logging
import shutil
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from harness.analysis.read_results import Loaded, load_sweep
from harness.base.errors import UserError
from harness.base.files import resource
from harness.bundle.archive import files_in, pack, write_sums
from harness.bundle.bundled_files import copy_plain_files, refuse_secrets_in_files
from harness.bundle.bundled_sweep import BundledSweep, bundled_sweep
from harness.bundle.instructions import write_instructions
from harness.bundle.manifest import MANIFEST, RECORDS, SCHEMA, Manifest, drawn_with
from harness.bundle.redrawing import draw_pages
from harness.bundle.source_code import CHANGES, LOCK, add_code
from harness.schema.code_identity import harness_identity
from harness.schema.command_lines import harness_command
from harness.schema.message_cost import PROBES
from harness.schema.record import encode
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.sweep_lock import is_locked

_LOG = logging.getLogger(__name__)


def write_bundle(folders: Sequence[Path], target: Path, allowed: Collection[str] = ()) -> Path:
    """Write the sweeps in `folders` to the archive `target` and return it.

    The same records, code and versions make the same bytes. `allowed` are what looks like secrets and is none.

    Raises:
        UserError: a sweep runs now or has no finished launch, a link or what looks like a secret is in its folder, or
            the archive cannot be written.
    """
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        raise UserError("SWEEP names one sweep twice, or two of one name: name each once")
    with tempfile.TemporaryDirectory(prefix="harness-bundle-") as temporary:
        root = Path(temporary)
        loaded = [_copy(folder, root / RECORDS / name) for folder, name in zip(folders, names, strict=True)]
        # The probes beside the sweeps, which predictions rest on.
        for probes in sorted({folder.resolve().parent / PROBES for folder in folders}):
            if probes.is_dir():
                copy_plain_files(probes, root / RECORDS / PROBES, _is_hidden)
        refuse_secrets_in_files(root, files_in(root), allowed)
        runs = [run for sweep in loaded for run in sweep.runs]
        moment = max(run.ended for run in runs)
        draw_pages(root, names, moment)
        sweeps = [_describe(copy) for copy in loaded]
        code = add_code(root, sorted({run.provenance.commit for run in runs} - {""}))
        refuse_secrets_in_files(root, [name for name in files_in(root) if name == f"source/{CHANGES}"], allowed)
        write_instructions(root, target.name, sweeps, code)
        for name in (LOCK, "LICENSE", "CITATION.cff"):
            shutil.copyfile(resource(name), root / name)
        manifest = Manifest(
            schema=SCHEMA,
            name=target.name,
            moment=moment,
            sweeps=tuple(names),
            launches=sum(len(load_sweep(copy.folder, every_code=True).runs) for copy in loaded),
            harness=harness_identity(),
            drawn_with=drawn_with(),
        )
        (root / MANIFEST).write_bytes(encode(manifest))
        write_sums(root)
        pack(root, target, moment)
    return target


def _copy(folder: Path, target: Path) -> Loaded:
    """Copy a sweep's folder, without what only a command that works on it needs, and read the copy."""
    if is_locked(SweepFolder(folder)):
        raise UserError(f"sweep '{folder.name}' is being run now: wait for it or end it")
    files = SweepFolder(folder)
    unshared = (files.running.name, files.checkpoints.name)
    copy_plain_files(folder.resolve(), target, lambda name: _is_hidden(name) or name in unshared)
    loaded = load_sweep(target)
    if not loaded.runs or loaded.study is None:
        raise UserError(f"sweep '{folder}' holds no finished launch of its last command: run it first")
    return loaded


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def _describe(copy: Loaded) -> BundledSweep:
    """Return what is said of the sweep `copy` in the bundle."""
    assert copy.study is not None
    return bundled_sweep(copy, harness_command(copy.study.sweep))
