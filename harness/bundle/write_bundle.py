"""Write a bundle: records, pages, scripts, code and words in one folder, then in one archive.

It is a research object: RO-Crate 1.1 with the profiles Process Run Crate and Workflow Run Crate 0.5.
"""

import json
import logging
import os
import shlex
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.analysis.read_results import Loaded, load_sweep
from harness.base import __version__
from harness.base.errors import UserError
from harness.base.files import resource, write_atomic
from harness.base.processes import ask
from harness.base.provenance import git, has_commit
from harness.bundle.appendix import BundledCode, BundledSweep, appendix, bundled_sweep, smoke
from harness.bundle.archive import (
    CRATE,
    MANIFEST,
    RECORDS,
    REPORTS,
    RO_CRATE,
    ROOT,
    SCHEMA,
    Manifest,
    draw_pages,
    drawn_with,
    pack,
    write_sums,
)
from harness.schema.code_identity import harness_identity
from harness.schema.command_lines import harness_command
from harness.schema.message_cost import PROBES
from harness.schema.record import RunRecord, decode, encode
from harness.schema.sweep_folder import RUN_FILE, STEPS_FILE, STUDY_FILE, SweepFolder
from harness.sweep.sweep_lock import is_locked

LOCK = "requirements.lock"
CHANGES = "uncommitted.diff"
_PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")
_PIP_LIMIT_S = 3600.0
_CHECKOUT = Path(__file__).parent.parent.parent
_LOG = logging.getLogger(__name__)

_AGAIN = "--results again/results --reports again/reports"
_SHELL = "#!/bin/sh\n# {what}\n# Real data: HARNESS_DATA_DIR names the folder with the original files.\n"
_README = """# {name}

Records, raw samples, figures, code and instructions of {count}, made by mpi-tf-harness {version}.

- `appendix.md`: artifact description and evaluation; begin there.
- `results/`: every launch's record and samples, scripts and logs; `reports/`: figures with their tables, pages.
- `smoke.sh BUNDLE`: the short variant; `{workflow}`: everything again.
- `source/`, `{lock}`: the code and what it stands on; `SHA256SUMS`, `ro-crate-metadata.json`.

`harness bundle verify` and `harness report --from` take the archive itself.
"""
WORKFLOW = "reproduce.sh"
_CONTEXT = [f"{RO_CRATE}/context", "https://w3id.org/ro/terms/workflow-run/context"]
_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": ("Workflow RO-Crate", "1.0"),
}
_LICENSE = "https://spdx.org/licenses/Apache-2.0"
_HOME = "https://arxiv.org/abs/1603.02339"
_PROGRAM = f"{_HOME}#mpi-tf-harness"  # the profile asks for an absolute address, and the program has none of its own
_TYPES = {
    ".json": "application/json",
    ".parquet": "application/vnd.apache.parquet",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".pdf": "application/pdf",
    ".csv": "text/csv",
    ".html": "text/html",
    ".md": "text/markdown",
    ".sh": "text/x-shellscript",
    ".tar": "application/x-tar",
    ".whl": "application/zip",
    ".toml": "application/toml",
}
Entity = dict[str, Any]


def write_bundle(folders: Sequence[Path], target: Path, *, offline: bool = False) -> Path:
    """Write the sweeps in `folders` to the archive `target` and return it.

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
        # A page's reference rests on the probes beside the sweeps.
        for place in sorted({folder.resolve().parent / PROBES for folder in folders}):
            for probe in sorted(place.glob("[!.]*/")):
                shutil.copytree(probe, root / RECORDS / PROBES / probe.name, dirs_exist_ok=True)
        runs = [run for one in loaded for run in one.runs]
        moment = max(run.ended for run in runs)
        taken, judgements = draw_pages(root, names, moment)
        sweeps = []
        for folder, one in zip(folders, loaded, strict=True):
            seconds = _analysis_seconds(folder, taken[one.folder.name])
            assert one.study is not None
            page = root / REPORTS / one.folder.name
            sweeps.append(bundled_sweep(one, harness_command(one.study.sweep), seconds, page, root))
            analysis = SweepFolder(folder).analysis
            if analysis.exists():
                shutil.copy(analysis, one.folder)
        code = _add_code(root, sorted({run.provenance.commit for run in runs} - {""}), wheels=offline)
        _write(root, "appendix.md", appendix(target.name, sweeps, judgements, code))
        _scripts(root, target.name, sweeps)
        for name in (LOCK, "LICENSE", "CITATION.cff"):
            shutil.copyfile(resource(name), root / name)
        manifest = Manifest(
            schema=SCHEMA,
            name=target.name,
            moment=moment,
            sweeps=tuple(names),
            launches=sum(len(load_sweep(one.folder, every_code=True).runs) for one in loaded),
            harness=harness_identity(),
            drawn_with=drawn_with(),
        )
        (root / MANIFEST).write_bytes(encode(manifest))
        write_crate(root, target.name, sweeps, moment)
        write_sums(root)
        pack(root, target, moment)
    return target


def _copy(folder: Path, target: Path) -> Loaded:
    """Copy a sweep's folder, without what only a command that works on it needs, and read the copy."""
    if is_locked(folder):
        raise UserError(f"sweep '{folder.name}' is being run now: wait for it or end it")
    files = SweepFolder(folder)
    unshared = shutil.ignore_patterns(".*", files.running.name, files.checkpoints.name)
    shutil.copytree(folder, target, ignore=unshared)
    loaded = load_sweep(target)
    if not loaded.runs or loaded.study is None:
        raise UserError(f"sweep '{folder}' holds no finished launch of its last command: run it first")
    return loaded


def _analysis_seconds(sweep: Path, measured: float) -> float:
    """Return what drawing the report of `sweep` took the first time it was measured; `measured` if that is now.

    It is kept beside the records, so that the same records make the same bundle.
    """
    path = SweepFolder(sweep).analysis
    if path.exists():
        return decode(path.read_bytes(), dict[str, float], path)["seconds"]
    found = round(measured, 1)
    try:
        write_atomic(path, encode({"seconds": found}))
    except UserError as error:
        _LOG.warning("the next bundle of these records will state a different time of analysis: %s", error)
    return found


def _scripts(root: Path, bundle: str, sweeps: Sequence[BundledSweep]) -> None:
    launches = [f"{RECORDS}/{one.name}/{one.cheapest.point.folder}" for one in smoke(sweeps)[0]]
    short = (
        "bundle=${1:?the archive of the bundle is missing: sh smoke.sh ../" + bundle + "}",
        "failed=0",
        'harness bundle verify "$bundle" || failed=1',
        'harness report --from "$bundle" --reports rebuilt || failed=1',
        *(f"{shlex.join(['harness', 'reproduce', launch])} --results again || failed=1" for launch in launches),
        "exit $failed",
    )
    what = "The short variant: the bundle checked, its figures drawn, a launch of each sweep again."
    _write(root, "smoke.sh", _SHELL.format(what=what) + "\n".join(short) + "\n")
    # In a folder of its own: beside the bundle's records the same launches count as finished.
    commands = [*(line for one in sweeps for line in one.command.splitlines()), "harness claims"]
    everything = ("failed=0", *(f"{line} {_AGAIN} || failed=1" for line in commands), "exit $failed")
    what = "Everything again: the launches and the report of each sweep, then the claims."
    _write(root, WORKFLOW, _SHELL.format(what=what) + "\n".join(everything) + "\n")
    count = f"{len(sweeps)} sweeps" if len(sweeps) > 1 else f"the sweep {sweeps[0].name}"
    text = _README.format(name=bundle, count=count, version=__version__, workflow=WORKFLOW, lock=LOCK)
    _write(root, "README.md", text)


def _write(root: Path, name: str, text: str) -> None:
    (root / name).write_text(text, encoding="utf-8")


def _add_code(root: Path, commits: Sequence[str], *, wheels: bool) -> BundledCode:
    """Write the present source and that of `commits` into ``ROOT/source``, `wheels` into ``ROOT/wheels`` if asked for.

    The source is what git has of this checkout and its uncommitted changes, or the files of the installed package.

    Raises:
        UserError: a wheel cannot be had or does not install, or git cannot archive the source.
    """
    folder, checkout = root / "source", (_CHECKOUT / ".git").exists()
    folder.mkdir()
    said = _of_checkout(folder, commits) if checkout else _of_package(folder, commits)
    name = said[0].partition(":")[0]
    commands = [f"mkdir harness && tar xf source/{name} -C harness --strip-components 1"]
    if (folder / CHANGES).exists():
        commands.append(f"patch -p1 -d harness <source/{CHANGES}")
    if wheels:
        commands = ["pip install --no-deps --no-index --find-links wheels mpi-tf-harness"]
        _add_wheels(root / "wheels")
        setup_s: float | None = try_wheels(root / "wheels")
    else:
        if checkout:
            commands.append("pip install --no-deps --no-build-isolation ./harness")
        else:
            commands = [f"tar xf source/{name}", "alias harness='python -m harness'  # in this folder"]
        try:
            setup_s = float((Path(sys.prefix) / ".stamp").read_text(encoding="utf-8"))  # the Makefile's
        except (OSError, ValueError):
            setup_s = None
    return BundledCode(said=tuple(said), commands=tuple(commands), wheels=wheels, setup_s=setup_s)


def _of_package(folder: Path, commits: Sequence[str]) -> list[str]:
    name, package = f"harness-{harness_identity()}.tar", Path(__file__).parent.parent
    with tarfile.open(folder / name, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                entry = tarfile.TarInfo(f"harness/{path.relative_to(package).as_posix()}")
                entry.size = path.stat().st_size
                with path.open("rb") as content:
                    archive.addfile(entry, content)
    return [f"{name}: the installed package that made the bundle", *map(_without_source, commits)]


def _of_checkout(folder: Path, commits: Sequence[str]) -> list[str]:
    head = git(_CHECKOUT, "rev-parse", "HEAD").out.strip()
    said = [_archive_commit(folder, head, "the source that made the bundle")]
    changes = git(_CHECKOUT, "diff", "--binary", "HEAD").out
    if changes:
        (folder / CHANGES).write_text(changes, encoding="utf-8", errors="surrogateescape")
        said.append(f"{CHANGES}: what differed from that commit when the bundle was made")
    for commit in commits:
        if commit != head:
            known = has_commit(_CHECKOUT, commit)
            said.append(_archive_commit(folder, commit, "the source of launches") if known else _without_source(commit))
    return said


def _archive_commit(folder: Path, commit: str, what: str) -> str:
    name = f"harness-{commit[:12]}"
    words = ["archive", "--format=tar", f"--prefix={name}/", "-o", f"{folder / name}.tar", commit]
    made = git(_CHECKOUT, *words)
    if made.code != 0:
        raise UserError(f"git cannot archive commit {commit[:12]}: {made.last_error}")
    return f"{name}.tar: {what}, commit {commit}"


def _without_source(commit: str) -> str:
    return f"commit {commit} of some launches is not here: its source is not in the bundle"


def _add_wheels(folder: Path) -> None:
    """Write a wheel of the harness and of every distribution in the lock file into `folder`.

    Raises:
        UserError: one cannot be had.
    """
    folder.mkdir()
    pip = [sys.executable, *_PIP]
    own = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(_CHECKOUT)]
    others = [*pip, "download", "--no-deps", "--require-hashes", "--only-binary=:all:", "--dest", str(folder)]
    others += ["-r", str(resource(LOCK))]
    if not (_CHECKOUT / "pyproject.toml").exists():
        raise UserError("--offline needs a checkout, which the harness's own wheel is built from: run it there")
    _ask_pip((own, others), "the wheels cannot be had", {"SOURCE_DATE_EPOCH": "315532800"})


def _ask_pip(commands: Sequence[Sequence[str]], failure: str, changes: Mapping[str, str | None]) -> None:
    for command in commands:
        made = ask(command, limit_s=_PIP_LIMIT_S, changes=changes)
        if made.code != 0:
            raise UserError(f"--offline: {failure}: {made.last_error}")


def try_wheels(folder: Path) -> float:
    """Return the seconds that the set-up from the wheels in `folder` alone takes; its environment is removed again.

    Raises:
        UserError: one is missing or does not install.
    """
    with tempfile.TemporaryDirectory(prefix="harness-bundle-") as name:
        install = [f"{name}/bin/python", *_PIP, "--isolated", "install", "--no-deps", "--no-index"]
        install += ["--find-links", str(folder)]
        began = time.monotonic()
        locked = [*install, "--require-hashes", "-r", str(resource(LOCK))]
        commands = ([sys.executable, "-m", "venv", name], locked, [*install, "mpi-tf-harness"])
        _ask_pip(commands, "the wheels do not install", {"PIP_CONFIG_FILE": os.devnull})
        return time.monotonic() - began


def write_crate(folder: Path, name: str, experiments: Sequence[BundledSweep], moment: datetime) -> None:
    """Write the metadata of all files in `folder`, the bundle called `name`, made of records up to `moment`."""
    launches = [(one, run) for one in experiments for run in one.loaded.runs]
    inside = tuple(sorted({_launch_folder(one, run) for one, run in launches}))
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    others = [file for file in files if file != WORKFLOW and not file.startswith(inside)]
    # A sweep is a run of the workflow, from its first launch to its last.
    actions = [
        _action(f"#sweep-{one.name}", f"Sweep {one.name}", one.command, WORKFLOW, one, one.loaded.runs)
        for one in experiments
    ] + [
        _action(
            f"#launch-{run.point.key}-{run.started:%Y%m%dT%H%M%S}",
            f"Launch {run.point.folder} of {one.name}",
            f"Training on {run.point.layout.ranks} ranks",
            _PROGRAM,
            one,
            (run,),
        )
        for one, run in launches
    ]
    graph = [
        {
            "@id": CRATE,
            "@type": "CreativeWork",
            "about": _to(ROOT),
            "conformsTo": [_to(RO_CRATE), _to([*_PROFILES][2])],
        },
        {
            "@id": ROOT,
            "@type": "Dataset",
            "name": f"Scaling of distributed TensorFlow training: {name}",
            "description": f"Records, figures, code and instructions of {len(experiments)} sweeps. "
            + " ".join(one.answer for one in experiments),
            "datePublished": moment.date().isoformat(),
            "license": _to(_LICENSE),
            "author": _to("#authors"),
            "publisher": _to("#authors"),
            "conformsTo": [_to(profile) for profile in _PROFILES],
            "mainEntity": _to(WORKFLOW),
            "hasPart": [_to(part) for part in (WORKFLOW, *others, *inside)],
            "mentions": [_to(action["@id"]) for action in actions],
        },
        *({"@id": at, "@type": "CreativeWork", "name": n, "version": v} for at, (n, v) in _PROFILES.items()),
        *_fixed(),
        *(_file(folder, file) for file in others),
        *(
            {
                "@id": _launch_folder(one, run),
                "@type": "Dataset",
                "name": run.point.folder,
                "description": f"Record ({RUN_FILE}) and raw samples of every step ({STEPS_FILE})",
                "exampleOfWork": _to("#records"),
            }
            for one, run in launches
        ),
        *actions,
    ]
    (folder / CRATE).write_text(json.dumps({"@context": _CONTEXT, "@graph": graph}, indent=1) + "\n", encoding="utf-8")


def _to(*targets: str) -> Any:
    found = [{"@id": target} for target in targets]
    return found[0] if len(found) == 1 else found


def _launch_folder(one: BundledSweep, run: RunRecord) -> str:
    return f"results/{one.name}/{run.point.folder}/"


def _fixed() -> list[Entity]:
    """Return what every bundle has: the workflow, its language, the program, the licence and the authors."""
    return [
        {
            "@id": WORKFLOW,
            "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
            "name": "All launches and figures of the bundle again",
            "encodingFormat": _TYPES[".sh"],
            "programmingLanguage": _to("#sh"),
            "creator": _to("#authors"),
            "license": _to(_LICENSE),
            "version": __version__,
            "conformsTo": _to("https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"),
            "url": _HOME,
            "input": _to("#study"),
            "output": _to("#records"),
            "hasPart": _to(_PROGRAM),
        },
        {
            "@id": "#sh",
            "@type": "ComputerLanguage",
            "name": "POSIX shell",
            "alternateName": "sh",
            "version": "2017",
            "identifier": _to("https://pubs.opengroup.org/onlinepubs/9699919799/"),
            "url": _to("https://pubs.opengroup.org/onlinepubs/9699919799/"),
        },
        {"@id": "https://pubs.opengroup.org/onlinepubs/9699919799/", "@type": "WebPage", "name": "POSIX.1-2017"},
        _parameter("#study", "File", STUDY_FILE, "What was asked of a sweep: workload, layouts, repeats"),
        _parameter("#records", "Dataset", "results", "Records of the launches"),
        {
            "@id": _PROGRAM,
            "@type": "SoftwareApplication",
            "name": "mpi-tf-harness",
            "softwareVersion": __version__,
            "url": _to(_HOME),
            "license": _to(_LICENSE),
        },
        {"@id": _HOME, "@type": "WebPage", "name": "Distributed TensorFlow with MPI (arXiv:1603.02339)"},
        {
            "@id": _LICENSE,
            "@type": "CreativeWork",
            "name": "Apache License 2.0",
            "identifier": "Apache-2.0",
            "url": _LICENSE,
            "description": "Permissive licence with a grant of patents",
        },
        {"@id": "#authors", "@type": "Organization", "name": "The mpi-tf-harness maintainers", "url": _HOME},
    ]


def _parameter(at: str, kind: str, name: str, text: str) -> Entity:
    return {
        "@id": at,
        "@type": "FormalParameter",
        "additionalType": kind,
        "name": name,
        "description": text,
        "valueRequired": True,
        "conformsTo": _to("https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"),
    }


def _file(folder: Path, name: str) -> Entity:
    path = folder / name
    kind = _TYPES.get(path.suffix, "text/plain")
    return {
        "@id": name,
        "@type": "File",
        "name": path.name,
        "encodingFormat": kind,
        "contentSize": str(path.stat().st_size),
        **({"about": _to(ROOT)} if name == "README.md" else {}),
        **({"exampleOfWork": _to("#study")} if path.name == STUDY_FILE else {}),
    }


def _action(at: str, name: str, text: str, instrument: str, one: BundledSweep, runs: Sequence[RunRecord]) -> Entity:
    began, ended = min(run.started for run in runs), max(run.ended for run in runs)
    return {
        "@id": at,
        "@type": "CreateAction",
        "name": name,
        "description": text,
        "instrument": _to(instrument),
        "agent": _to("#authors"),
        "startTime": began.astimezone(UTC).isoformat(timespec="seconds"),
        "endTime": ended.astimezone(UTC).isoformat(timespec="seconds"),
        "actionStatus": "http://schema.org/CompletedActionStatus",
        "object": _to(f"results/{one.name}/{STUDY_FILE}"),
        "result": _to(*(_launch_folder(one, run) for run in runs)),
    }
