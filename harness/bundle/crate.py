"""The bundle as a research object: RO-Crate 1.1 with the profiles Process Run Crate and Workflow Run Crate 0.5."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.base import __version__
from harness.base.errors import UserError
from harness.bundle.appendix import BundledSweep
from harness.schema.record import RUN_FILE, STEPS_FILE, RunRecord
from harness.schema.sweep import STUDY_FILE

CRATE = "ro-crate-metadata.json"
WORKFLOW = "reproduce.sh"
_ROOT = "./"
_SPEC = "https://w3id.org/ro/crate/1.1"
_CONTEXT = [f"{_SPEC}/context", "https://w3id.org/ro/terms/workflow-run/context"]
_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": ("Workflow RO-Crate", "1.0"),
}
_LICENSE = "https://spdx.org/licenses/Apache-2.0"
_HOME = "https://arxiv.org/abs/1603.02339"
_PROGRAM = f"{_HOME}#mpi-tf-harness"  # the profile asks for an absolute address, and the program has none of its own
_TYPES = {
    ".json": "application/json", ".parquet": "application/vnd.apache.parquet", ".svg": "image/svg+xml",
    ".png": "image/png", ".pdf": "application/pdf", ".csv": "text/csv", ".html": "text/html", ".md": "text/markdown",
    ".sh": "text/x-shellscript", ".tar": "application/x-tar", ".whl": "application/zip", ".toml": "application/toml",
}  # fmt: skip

Entity = dict[str, Any]


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
        _action(f"#launch-{run.point.key}-{run.started:%Y%m%dT%H%M%S}", f"Launch {run.point.folder} of {one.name}",
                f"Training on {run.point.layout.ranks} ranks", _PROGRAM, one, (run,))
        for one, run in launches
    ]  # fmt: skip
    graph = [
        {"@id": CRATE, "@type": "CreativeWork", "about": _to(_ROOT), "conformsTo": [_to(_SPEC), _to([*_PROFILES][2])]},
        {
            "@id": _ROOT,
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
        {"@id": "#sh", "@type": "ComputerLanguage", "name": "POSIX shell", "alternateName": "sh",
         "version": "2017", "identifier": _to("https://pubs.opengroup.org/onlinepubs/9699919799/"),
         "url": _to("https://pubs.opengroup.org/onlinepubs/9699919799/")},
        {"@id": "https://pubs.opengroup.org/onlinepubs/9699919799/", "@type": "WebPage", "name": "POSIX.1-2017"},
        _parameter("#study", "File", "sweep.json", "What was asked of a sweep: workload, layouts, repeats"),
        _parameter("#records", "Dataset", "results", "Records of the launches"),
        {"@id": _PROGRAM, "@type": "SoftwareApplication", "name": "mpi-tf-harness", "softwareVersion": __version__,
         "url": _to(_HOME), "license": _to(_LICENSE)},
        {"@id": _HOME, "@type": "WebPage", "name": "Distributed TensorFlow with MPI (arXiv:1603.02339)"},
        {"@id": _LICENSE, "@type": "CreativeWork", "name": "Apache License 2.0", "identifier": "Apache-2.0",
         "url": _LICENSE, "description": "Permissive licence with a grant of patents"},
        {"@id": "#authors", "@type": "Organization", "name": "The mpi-tf-harness maintainers", "url": _HOME},
    ]  # fmt: skip


def _parameter(at: str, kind: str, name: str, text: str) -> Entity:
    return {
        "@id": at, "@type": "FormalParameter", "additionalType": kind, "name": name, "description": text,
        "valueRequired": True, "conformsTo": _to("https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"),
    }  # fmt: skip


def _file(folder: Path, name: str) -> Entity:
    path = folder / name
    kind = _TYPES.get(path.suffix, "text/plain")
    return {
        "@id": name, "@type": "File", "name": path.name, "encodingFormat": kind,
        "contentSize": str(path.stat().st_size),
        **({"about": _to(_ROOT)} if name == "README.md" else {}),
        **({"exampleOfWork": _to("#study")} if path.name == STUDY_FILE else {}),
    }  # fmt: skip


def _action(at: str, name: str, text: str, instrument: str, one: BundledSweep, runs: Sequence[RunRecord]) -> Entity:
    began, ended = min(run.started for run in runs), max(run.ended for run in runs)
    return {
        "@id": at, "@type": "CreateAction", "name": name, "description": text,
        "instrument": _to(instrument), "agent": _to("#authors"),
        "startTime": began.astimezone(UTC).isoformat(timespec="seconds"),
        "endTime": ended.astimezone(UTC).isoformat(timespec="seconds"),
        "actionStatus": "http://schema.org/CompletedActionStatus",
        "object": _to(f"results/{one.name}/{STUDY_FILE}"),
        "result": _to(*(_launch_folder(one, run) for run in runs)),
    }  # fmt: skip


def check_crate(folder: Path) -> int:
    """Return how many entities the crate in `folder` describes, if it is well-formed and all it refers to exists.

    Raises:
        UserError: it is not.
    """
    try:
        graph = json.loads((folder / CRATE).read_text(encoding="utf-8"))["@graph"]
        known = {entity["@id"]: entity for entity in graph}
        parts = [part["@id"] for part in known[_ROOT]["hasPart"]]
        specification = known[CRATE]["conformsTo"][0]["@id"]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{CRATE} is missing or not an RO-Crate: {error!r}") from error
    if len(known) != len(graph) or specification != _SPEC:
        raise UserError(f"{CRATE} names an entity twice or is not of {_SPEC}")
    absent = [part for part in parts if part not in known or not (folder / part).exists()]
    absent += [at for at in _references(graph) if at not in known and "://" not in at]
    if absent:
        raise UserError(f"{CRATE} refers to '{absent[0]}', which does not exist")
    return len(known)


def _references(value: Any) -> Iterable[str]:
    if isinstance(value, list):
        for one in value:
            yield from _references(one)
    elif isinstance(value, dict):
        if set(value) == {"@id"}:
            yield value["@id"]
        for one in value.values():
            yield from _references(one)
