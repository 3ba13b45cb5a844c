"""The description of a bundle as a research object, for programs that collect such: RO-Crate 1.1.

With the profiles Process Run Crate and Workflow Run Crate 0.5. The test reads it with the profiles' own validator.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.base import __version__
from harness.base.errors import UserError
from harness.bundle.bundled_sweep import BundledSweep
from harness.bundle.instructions import WORKFLOW
from harness.schema.record import RunRecord
from harness.schema.sweep_folder import RUN_FILE, STEPS_FILE, STUDY_FILE

CRATE = "ro-crate-metadata.json"
_ROOT = "./"
_RO_CRATE = "https://w3id.org/ro/crate/1.1"
_CONTEXT = [f"{_RO_CRATE}/context", "https://w3id.org/ro/terms/workflow-run/context"]
_WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    _WORKFLOW_CRATE: ("Workflow RO-Crate", "1.0"),
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
    ".tex": "text/x-tex",
    ".whl": "application/zip",
    ".toml": "application/toml",
}
Entity = dict[str, Any]


def write_crate(folder: Path, name: str, sweeps: Sequence[BundledSweep], moment: datetime) -> None:
    """Write the metadata of all files in `folder`, the bundle called `name`, made of records up to `moment`."""
    launches = [(sweep, run) for sweep in sweeps for run in sweep.loaded.runs]
    launch_folders = tuple(sorted({_launch_folder(sweep, run) for sweep, run in launches}))
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    others = [file for file in files if file != WORKFLOW and not file.startswith(launch_folders)]
    actions = [*map(_sweep_action, sweeps), *(_launch_action(sweep, run) for sweep, run in launches)]
    parts = (WORKFLOW, *others, *launch_folders)
    graph = [
        {
            "@id": CRATE,
            "@type": "CreativeWork",
            "about": _reference(_ROOT),
            "conformsTo": [_reference(_RO_CRATE), _reference(_WORKFLOW_CRATE)],
        },
        _root_entity(name, sweeps, moment, parts, actions),
        *(
            {"@id": profile, "@type": "CreativeWork", "name": title, "version": version}
            for profile, (title, version) in _PROFILES.items()
        ),
        *_fixed(),
        *(_file(folder, file) for file in others),
        *(_launch_entity(sweep, run) for sweep, run in launches),
        *actions,
    ]
    (folder / CRATE).write_text(json.dumps({"@context": _CONTEXT, "@graph": graph}, indent=1) + "\n", encoding="utf-8")


def _root_entity(
    name: str, sweeps: Sequence[BundledSweep], moment: datetime, parts: Sequence[str], actions: Sequence[Entity]
) -> Entity:
    """Return the bundle itself: what it is, its `parts` (files and folders), the `actions` that made them."""
    answers = " ".join(sweep.answer for sweep in sweeps)
    return {
        "@id": _ROOT,
        "@type": "Dataset",
        "name": f"Scaling of distributed TensorFlow training: {name}",
        "description": f"Records, figures, code and instructions of {len(sweeps)} sweeps. {answers}",
        "datePublished": moment.date().isoformat(),
        "license": _reference(_LICENSE),
        "author": _reference("#authors"),
        "publisher": _reference("#authors"),
        "conformsTo": [_reference(profile) for profile in _PROFILES],
        "mainEntity": _reference(WORKFLOW),
        "hasPart": [_reference(part) for part in parts],
        "mentions": [_reference(action["@id"]) for action in actions],
    }


def _sweep_action(sweep: BundledSweep) -> Entity:
    """Return a sweep as a run of the workflow, from its first launch to its last."""
    at = f"#sweep-{sweep.name}"
    return _action(at, f"Sweep {sweep.name}", sweep.command, WORKFLOW, sweep, sweep.loaded.runs)


def _launch_action(sweep: BundledSweep, run: RunRecord) -> Entity:
    at = f"#launch-{run.point.key}-{run.started:%Y%m%dT%H%M%S}"
    name = f"Launch {run.point.folder} of {sweep.name}"
    return _action(at, name, f"Training on {run.point.layout.ranks} ranks", _PROGRAM, sweep, (run,))


def _launch_entity(sweep: BundledSweep, run: RunRecord) -> Entity:
    return {
        "@id": _launch_folder(sweep, run),
        "@type": "Dataset",
        "name": run.point.folder,
        "description": f"Record ({RUN_FILE}) and raw samples of every step ({STEPS_FILE})",
        "exampleOfWork": _reference("#records"),
    }


def _reference(target: str) -> Entity:
    return {"@id": target}


def _launch_folder(sweep: BundledSweep, run: RunRecord) -> str:
    return f"results/{sweep.name}/{run.point.folder}/"


def _fixed() -> list[Entity]:
    """Return what every bundle has: the workflow, its language, the program, the licence and the authors."""
    return [
        {
            "@id": WORKFLOW,
            "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
            "name": "All launches and figures of the bundle again",
            "encodingFormat": _TYPES[".sh"],
            "programmingLanguage": _reference("#sh"),
            "creator": _reference("#authors"),
            "license": _reference(_LICENSE),
            "version": __version__,
            "conformsTo": _reference("https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"),
            "url": _HOME,
            "input": _reference("#study"),
            "output": _reference("#records"),
            "hasPart": _reference(_PROGRAM),
        },
        {
            "@id": "#sh",
            "@type": "ComputerLanguage",
            "name": "POSIX shell",
            "alternateName": "sh",
            "version": "2017",
            "identifier": _reference("https://pubs.opengroup.org/onlinepubs/9699919799/"),
            "url": _reference("https://pubs.opengroup.org/onlinepubs/9699919799/"),
        },
        {"@id": "https://pubs.opengroup.org/onlinepubs/9699919799/", "@type": "WebPage", "name": "POSIX.1-2017"},
        _parameter("#study", "File", STUDY_FILE, "What was asked of a sweep: workload, layouts, repeats"),
        _parameter("#records", "Dataset", "results", "Records of the launches"),
        {
            "@id": _PROGRAM,
            "@type": "SoftwareApplication",
            "name": "mpi-tf-harness",
            "softwareVersion": __version__,
            "url": _reference(_HOME),
            "license": _reference(_LICENSE),
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
        "conformsTo": _reference("https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"),
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
        **({"about": _reference(_ROOT)} if name == "README.md" else {}),
        **({"exampleOfWork": _reference("#study")} if path.name == STUDY_FILE else {}),
    }


def _action(at: str, name: str, text: str, instrument: str, sweep: BundledSweep, runs: Sequence[RunRecord]) -> Entity:
    began = min(run.started for run in runs)
    ended = max(run.ended for run in runs)
    results = [_reference(_launch_folder(sweep, run)) for run in runs]
    return {
        "@id": at,
        "@type": "CreateAction",
        "name": name,
        "description": text,
        "instrument": _reference(instrument),
        "agent": _reference("#authors"),
        "startTime": began.astimezone(UTC).isoformat(timespec="seconds"),
        "endTime": ended.astimezone(UTC).isoformat(timespec="seconds"),
        "actionStatus": "http://schema.org/CompletedActionStatus",
        "object": _reference(f"results/{sweep.name}/{STUDY_FILE}"),
        "result": results[0] if len(results) == 1 else results,
    }


def check_crate(folder: Path) -> int:
    """Return how many entities the crate in `folder` describes, if it is well-formed and all it refers to exists.

    Raises:
        UserError: it is not.
    """
    try:
        graph = json.loads((folder / CRATE).read_text(encoding="utf-8"))["@graph"]
        entities = {entity["@id"]: entity for entity in graph}
        parts = [part["@id"] for part in entities[_ROOT]["hasPart"]]
        specification = entities[CRATE]["conformsTo"][0]["@id"]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{CRATE} is missing or not an RO-Crate: {error!r}") from error
    if len(entities) != len(graph) or specification != _RO_CRATE:
        raise UserError(f"{CRATE} names an entity twice or is not of {_RO_CRATE}")
    absent = [part for part in parts if part not in entities or not (folder / part).exists()]
    absent += [target for target in _references(graph) if target not in entities and "://" not in target]
    if absent:
        raise UserError(f"{CRATE} refers to '{absent[0]}', which does not exist")
    return len(entities)


def _references(value: Any) -> Iterable[str]:
    """Yield every identifier that `value`, a part of a graph, refers to."""
    if isinstance(value, list):
        for entry in value:
            yield from _references(entry)
    elif isinstance(value, dict):
        if set(value) == {"@id"}:
            yield value["@id"]
        for entry in value.values():
            yield from _references(entry)
