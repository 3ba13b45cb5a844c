"""Make a bundle: its files, what it says of each sweep, its README and scripts, the code that made it."""

import logging
import math
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pandas as pd

from harness.analysis import units
from harness.analysis.launch_frames import launch_frame
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.scaling import scale
from harness.base import __version__
from harness.base.errors import UserError
from harness.base.files import folder_atomic, resource
from harness.base.provenance import git, has_commit
from harness.base.record_words import shell_line
from harness.base.secret_text import secrets_in_text
from harness.base.setting_names import setting
from harness.bundle.archive import (
    MANIFEST,
    RECORDS,
    REPORTS,
    SCHEMA,
    Manifest,
    drawn_with,
    files_in,
    open_bundle,
    pack,
    unpacked,
    write_sums,
)
from harness.bundle.repetition import LOSS_BOUND
from harness.claims.claim_evidence import gather
from harness.claims.judgement import judge_claim
from harness.report.answer import plain
from harness.report.claims_answer import FOLDER as CLAIMS_FOLDER
from harness.report.claims_answer import claims_answer
from harness.report.experiment_results import find_studies, read_experiments
from harness.report.html_pages import PAGE, PAPER, write_page
from harness.report.sweep_answer import page_sentence, report_sweep
from harness.report.sweep_facts import data_facts, machine_facts, workload_facts
from harness.report.sweep_warnings import banners
from harness.schema.claim import CLAIMS_FILE, read_published
from harness.schema.code_identity import harness_identity
from harness.schema.command_lines import harness_command
from harness.schema.message_cost import PROBES
from harness.schema.record import RunRecord, encode
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.sweep_lock import is_locked
from harness.why.known_causes import diagnose_sweep

# What goes into a bundle: plain files only, none of them with a secret in it.

_MOST_STATED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class BundledSecret:
    """What looks like a secret in `file` (its name in the bundle), in `line` from 1; its value is not kept."""

    file: str
    line: int
    name: str

    @property
    def stated(self) -> str:
        """What `--allow` names it by."""
        return f"{self.file}:{self.name}"


def copy_plain_files(folder: Path, target: Path, is_left_out: Callable[[str], bool]) -> None:
    """Copy the plain files below `folder` to the new folder `target`, without the entries that `is_left_out` names.

    Raises:
        UserError: anything else is there: a link would bring in what it shows, a pipe or a device has no content.
    """
    _refuse_link(folder)
    target.mkdir(parents=True, exist_ok=True)
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if is_left_out(entry.name):
            continue
        path = Path(entry.path)
        _refuse_link(path)
        if entry.is_dir():
            copy_plain_files(path, target / entry.name, is_left_out)
        elif entry.is_file():
            _copy_file(path, target / entry.name)
        else:
            raise UserError(f"'{path}' is no plain file, and a bundle has nothing else: remove it")


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise UserError(f"'{path}' is a link, and a bundle has only files of its own: remove it or copy the file")


def _copy_file(path: Path, target: Path) -> None:
    """Copy a file that has become no link meanwhile."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"'{path}' cannot be put into a bundle ({error.strerror}): mend or remove it") from error
    with os.fdopen(handle, "rb") as file, target.open("wb") as copy:
        shutil.copyfileobj(file, copy)


def refuse_secrets_in_files(root: Path, files: Collection[str], allowed: Collection[str]) -> None:
    """Refuse the bundle in `root` if any of its `files` has what looks like a secret and is not among the `allowed`.

    Raises:
        UserError: with file, line and name of the first ones.
    """
    secrets = [secret for name in files for secret in _secrets_of(root, name) if secret.stated not in allowed]
    if not secrets:
        return
    places = [f"'{secret.file}', line {secret.line}: {secret.name}" for secret in secrets[:_MOST_STATED]]
    more = f"; and {len(secrets) - _MOST_STATED} more" if secrets[_MOST_STATED:] else ""
    raise UserError(
        f"what looks like a secret would be in the bundle ({'; '.join(places)}{more}): remove it from these files, or, "
        f"if it is none, say {setting('allow', secrets[0].stated)}"
    )


def _secrets_of(root: Path, name: str) -> list[BundledSecret]:
    secrets = []
    with (root / name).open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, 1):
            secrets += [BundledSecret(file=name, line=number, name=secret.name) for secret in secrets_in_text(line)]
    return secrets


# What a bundle says of each sweep: its answer, its command, its limits, and which launches are cheap to repeat.

SMOKE_MINUTES = 30.0
_PAUSE = timedelta(seconds=30)  # between launches: what starts and ends them belongs to them


@dataclass(frozen=True, kw_only=True, slots=True)
class BundledSweep:
    """One sweep of a bundle. `command` gives its launches, `limits` are sentences on what they do not show."""

    name: str
    answer: str
    command: str
    loaded: Loaded
    limits: tuple[str, ...]

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """The launches that statements rest on: the valid ones, else all."""
        return self.loaded.valid or self.loaded.runs

    @property
    def cheapest(self) -> RunRecord:
        """The launch that takes the least time, one with valid times if there is one."""
        return min(self.runs, key=lambda run: (run.wall_seconds, run.point.folder))


def bundled_sweep(loaded: Loaded, command: str) -> BundledSweep:
    """Return what is to be said of the sweep `loaded`, which `command` gives again."""
    assert loaded.study is not None, f"{loaded.folder} was checked to be a sweep"
    launches = launch_frame(loaded.runs, loaded.epochs)
    limits = [
        *(banner.text for banner in banners(loaded.valid or loaded.runs, launches)),
        *(f"{diagnosis.cause.capitalize()}: {diagnosis.evidence}" for diagnosis in diagnose_sweep(loaded)),
        *(f"{skipped.layout} was not run: {skipped.reason}." for skipped in loaded.study.skipped),
        *(f"A launch of {failure.point.layout} failed: {failure.reason}." for failure in loaded.failures),
    ]
    invalid = [f"{run.point.layout}, launch {run.point.repeat + 1}" for run in loaded.runs if run.invalid]
    if invalid:
        share = f"{len(invalid)} of {len(loaded.runs)} launches"
        limits.append(f"{share} have no valid times and are in no statistic: {'; '.join(invalid)}.")
    return BundledSweep(
        name=loaded.folder.name,
        answer=page_sentence(loaded, scale(launches)).replace("\u00a0", " "),
        command=command,
        loaded=loaded,
        limits=tuple(limits),
    )


def smoke(sweeps: Sequence[BundledSweep]) -> tuple[BundledSweep, ...]:
    """Return the sweeps whose cheapest launches fit into `SMOKE_MINUTES` together, the cheapest first."""
    minutes = 0.0
    chosen = []
    for sweep in sorted(sweeps, key=lambda sweep: sweep.cheapest.wall_seconds):
        launch_minutes = sweep.cheapest.wall_seconds / 60
        if minutes + launch_minutes <= SMOKE_MINUTES:
            minutes += launch_minutes
            chosen.append(sweep)
    return tuple(chosen)


def execution_seconds(runs: Sequence[RunRecord]) -> float:
    """Return the seconds in which launches were under way, those at the same time counted once, short pauses too."""
    total = timedelta()
    counted_until = None
    for begin, end in sorted((run.ended - timedelta(seconds=run.wall_seconds), run.ended) for run in runs):
        if counted_until is None or begin - counted_until > _PAUSE:
            counted_until = begin
        total += max(timedelta(), end - counted_until)
        counted_until = max(counted_until, end)
    return total.total_seconds()


# The code in a bundle: the source that made it, that of the launches, and how a stranger installs it.

CHANGES = "uncommitted.diff"
LOCK = "requirements.lock"
_CHECKOUT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, kw_only=True, slots=True)
class BundledCode:
    """What a bundle has of code: a sentence on each file, and the `commands` that install it."""

    descriptions: tuple[str, ...]
    commands: tuple[str, ...]


def add_code(root: Path, commits: Sequence[str]) -> BundledCode:
    """Write the present source and that of `commits` into ``ROOT/source``.

    The source is what git has of this checkout and its uncommitted changes, or the files of the installed package.

    Raises:
        UserError: git cannot archive the source.
    """
    folder = root / "source"
    folder.mkdir()
    from_checkout = (_CHECKOUT / ".git").exists()
    descriptions = _of_checkout(folder, commits) if from_checkout else _of_package(folder, commits)
    archive = descriptions[0].partition(":")[0]
    if from_checkout:
        commands = [f"mkdir harness && tar xf source/{archive} -C harness --strip-components 1"]
        if (folder / CHANGES).exists():
            commands.append(f"patch -p1 -d harness <source/{CHANGES}")
        commands.append("pip install --no-deps --no-build-isolation ./harness")
    else:
        commands = [f"tar xf source/{archive}", "alias harness='python -m harness'  # in this folder"]
    return BundledCode(descriptions=tuple(descriptions), commands=tuple(commands))


def _of_package(folder: Path, commits: Sequence[str]) -> list[str]:
    """Archive the files of the installed package; return a sentence on each archive and on each commit without one."""
    name = f"harness-{harness_identity()}.tar"
    package = Path(__file__).parent.parent
    with tarfile.open(folder / name, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                entry = tarfile.TarInfo(f"harness/{path.relative_to(package).as_posix()}")
                entry.size = path.stat().st_size
                with path.open("rb") as content:
                    archive.addfile(entry, content)
    return [f"{name}: the installed package that made the bundle", *map(_without_source, commits)]


def _of_checkout(folder: Path, commits: Sequence[str]) -> list[str]:
    """Archive what git has of this checkout and of `commits`; return a sentence on each."""
    head = git(_CHECKOUT, "rev-parse", "HEAD").out.strip()
    descriptions = [_archive_commit(folder, head, "the source that made the bundle")]
    changes = git(_CHECKOUT, "diff", "--binary", "HEAD").out
    if changes:
        (folder / CHANGES).write_text(changes, encoding="utf-8", errors="surrogateescape")
        descriptions.append(f"{CHANGES}: what differed from that commit when the bundle was made")
    for commit in commits:
        if commit == head:
            continue
        if has_commit(_CHECKOUT, commit):
            descriptions.append(_archive_commit(folder, commit, "the source of launches"))
        else:
            descriptions.append(_without_source(commit))
    return descriptions


def _archive_commit(folder: Path, commit: str, what: str) -> str:
    name = f"harness-{commit[:12]}"
    words = ["archive", "--format=tar", f"--prefix={name}/", "-o", f"{folder / name}.tar", commit]
    reply = git(_CHECKOUT, *words)
    if reply.code != 0:
        raise UserError(f"git cannot archive commit {commit[:12]}: {reply.last_error}")
    return f"{name}.tar: {what}, commit {commit}"


def _without_source(commit: str) -> str:
    return f"commit {commit} of some launches is not here: its source is not in the bundle"


# What a stranger reads and runs in a bundle: its README, the short variant, everything again.

_AGAIN = "--results again/results --reports again/reports"
_SMOKE = "The short variant: the bundle checked, its figures drawn, a launch of each sweep again."
_EVERYTHING = "Everything again: the launches and the report of each sweep, then the claims."
_HEADER = "#!/bin/sh\n# {purpose}\n# Real data: HARNESS_DATA_DIR names the folder with the original files.\n"
_README = """# {name}

Records, raw samples, figures, code and instructions of {count}, made by mpi-tf-harness {version}.

- `results/`: every launch's record and samples, scripts and logs; `reports/`: figures with their tables, pages, and
  beside the page of each sweep its settings as a file, `study.toml`.
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


# Draw the pages of a bundle from its records, and compare the numbers of their tables and summaries.

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def draw_pages(root: Path, sweeps: Sequence[str], moment: datetime) -> None:
    """Draw the report of each sweep in ``ROOT/results`` and the page of claims into ``ROOT/reports``.

    Nothing on the pages depends on this machine (as a prediction by its newest probe does). The index dates all of
    them `moment` or before.
    """
    for name in sweeps:
        report_sweep(root / RECORDS / name, root / REPORTS, style=PAPER)
    published = read_published(resource(CLAIMS_FILE))
    evidence = gather(root / RECORDS / name for name in sweeps)
    judgements = tuple(judge_claim(claim, evidence, pd.DataFrame()) for claim in published.claims)
    reports = root / REPORTS
    experiments = read_experiments(find_studies(root / RECORDS), published, reports / CLAIMS_FOLDER)
    answer = claims_answer(judgements, evidence, experiments, published, reports, moment=moment)
    write_page(answer, reports)


@dataclass(frozen=True, kw_only=True, slots=True)
class Redrawn:
    """The tables and summaries of a bundle whose pages were drawn again, and those whose numbers are `different`."""

    files: tuple[str, ...]
    different: tuple[str, ...]
    pages: tuple[Path, ...]
    drawn_with: str


def redraw_bundle(archive: Path, target: Path) -> Redrawn:
    """Draw all pages of the bundle `archive` from its records into ``TARGET/reports``, the records beside them.

    Raises:
        UserError: it is not a bundle, its checksums are wrong, or `target` holds something else.
    """
    with unpacked(archive) as folder:
        manifest = open_bundle(folder)
        with folder_atomic(target, "--reports") as staging:
            shutil.copytree(folder / RECORDS, staging / RECORDS)
            draw_pages(staging, manifest.sweeps, manifest.moment)
            tables = [name for name in files_in(folder) if name.endswith((".csv", ".json"))]
            files = tuple(name for name in tables if name.startswith(f"{REPORTS}/"))
            different = tuple(name for name in files if not _is_same(folder / name, staging / name))
    pages = tuple(target / REPORTS / name / PAGE for name in (*manifest.sweeps, CLAIMS_FOLDER))
    return Redrawn(files=files, different=different, pages=pages, drawn_with=manifest.drawn_with)


def _is_same(file: Path, drawn: Path) -> bool:
    return drawn.is_file() and same_numbers(file.read_text(encoding="utf-8"), drawn.read_text(encoding="utf-8"))


def same_numbers(text: str, redrawn: str) -> bool:
    """Return whether two tables or summaries have the same words, and numbers that differ by a millionth at most."""
    if _NUMBER.sub("0", text) != _NUMBER.sub("0", redrawn):
        return False
    pairs = zip(_NUMBER.findall(text), _NUMBER.findall(redrawn), strict=True)
    return all(math.isclose(float(number), float(another), rel_tol=1e-6) for number, another in pairs)


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
