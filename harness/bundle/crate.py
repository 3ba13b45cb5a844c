"""The bundle as a research object: RO-Crate 1.1 with the profiles Process Run Crate and Workflow Run Crate 0.5."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.base import __version__
from harness.base.errors import UserError
from harness.bundle.archive import SUMS, files_in
from harness.bundle.experiment import BundledSweep
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
    """Write the metadata of all that lies in `folder`, the bundle called `name`, made of records up to `moment`."""
    own = {WORKFLOW, CRATE, SUMS}
    launches = {f"results/{one.name}/{run.point.folder}" for one in experiments for run in one.loaded.runs}
    inside = tuple(f"{launch}/" for launch in sorted(launches))
    others = [file for file in files_in(folder) if file not in own and not file.startswith(inside)]
    parts = [WORKFLOW, *others, *inside]
    actions = [*map(_study, experiments), *(_launch(one, run) for one in experiments for run in one.loaded.runs)]
    graph = [
        {"@id": CRATE, "@type": "CreativeWork", "about": _to(_ROOT), "conformsTo": [_to(_SPEC), _to([*_PROFILES][2])]},
        _root(name, experiments, moment, parts, actions),
        *({"@id": at, "@type": "CreativeWork", "name": n, "version": v} for at, (n, v) in _PROFILES.items()),
        *_fixed(),
        *(_file(folder, file) for file in others),
        *(_folder(one, run) for one in experiments for run in one.loaded.runs),
        *actions,
    ]
    (folder / CRATE).write_text(json.dumps({"@context": _CONTEXT, "@graph": graph}, indent=1) + "\n", encoding="utf-8")


def _to(*targets: str) -> Any:
    found = [{"@id": target} for target in targets]
    return found[0] if len(found) == 1 else found


def _root(
    name: str, experiments: Sequence[BundledSweep], moment: datetime, parts: Iterable[str], actions: Sequence[Entity]
) -> Entity:
    answers = " ".join(one.answer for one in experiments)
    return {
        "@id": _ROOT,
        "@type": "Dataset",
        "name": f"Scaling of distributed TensorFlow training: {name}",
        "description": f"Records, figures, code and instructions of {len(experiments)} sweeps. {answers}",
        "datePublished": moment.date().isoformat(),
        "license": _to(_LICENSE),
        "author": _to("#authors"),
        "publisher": _to("#authors"),
        "conformsTo": [_to(profile) for profile in _PROFILES],
        "mainEntity": _to(WORKFLOW),
        "hasPart": [_to(part) for part in parts],
        "mentions": [_to(action["@id"]) for action in actions],
    }


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


def _folder(one: BundledSweep, run: RunRecord) -> Entity:
    told = f"Record ({RUN_FILE}) and raw samples of every step ({STEPS_FILE})"
    return {
        "@id": f"results/{one.name}/{run.point.folder}/", "@type": "Dataset", "name": run.point.folder,
        "description": told, "exampleOfWork": _to("#records"),
    }  # fmt: skip


def _study(one: BundledSweep) -> Entity:
    """Return the run of the workflow that was this sweep: from its first launch to its last."""
    runs = one.loaded.runs
    return {
        "@id": f"#sweep-{one.name}", "@type": "CreateAction", "name": f"Sweep {one.name}",
        "description": one.command, "instrument": _to(WORKFLOW), "agent": _to("#authors"),
        "startTime": _time(min(run.started for run in runs)),
        "endTime": _time(max(run.ended for run in runs)),
        "actionStatus": "http://schema.org/CompletedActionStatus",
        "object": _to(f"results/{one.name}/sweep.json"),
        "result": [_to(f"results/{one.name}/{run.point.folder}/") for run in runs],
    }  # fmt: skip


def _launch(one: BundledSweep, run: RunRecord) -> Entity:
    return {
        "@id": f"#launch-{run.point.key}-{run.started:%Y%m%dT%H%M%S}", "@type": "CreateAction",
        "name": f"Launch {run.point.folder} of {one.name}",
        "description": f"Training on {run.point.layout.ranks} ranks", "instrument": _to(_PROGRAM),
        "agent": _to("#authors"), "startTime": _time(run.started), "endTime": _time(run.ended),
        "actionStatus": "http://schema.org/CompletedActionStatus",
        "object": _to(f"results/{one.name}/sweep.json"),
        "result": _to(f"results/{one.name}/{run.point.folder}/"),
    }  # fmt: skip


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")


def check_crate(folder: Path) -> int:
    """Return how many entities the crate in `folder` describes, if it is well-formed and all it points at is there.

    Raises:
        UserError: it is not.
    """
    try:
        graph = json.loads((folder / CRATE).read_text(encoding="utf-8"))["@graph"]
        known = {entity["@id"]: entity for entity in graph}
        parts = [part["@id"] for part in known[_ROOT]["hasPart"]]
        specification = known[CRATE]["conformsTo"][0]["@id"]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{CRATE} is missing or no RO-Crate: {error!r}") from error
    if len(known) != len(graph) or specification != _SPEC:
        raise UserError(f"{CRATE} names an entity twice or is not of {_SPEC}")
    lost = [part for part in parts if part not in known or not (folder / part).exists()]
    lost += [at for at in _references(graph) if at not in known and "://" not in at]
    if lost:
        raise UserError(f"{CRATE} points at '{lost[0]}', which is not there")
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
