"""What a paper's methods section must say about a study, and whom it must cite, from the records alone."""

from collections.abc import Mapping, Sequence

from harness.analysis import numbers
from harness.analysis.read_results import Loaded
from harness.analysis.scaling import Scaling
from harness.analysis.stats import NEEDED
from harness.datasets import info, names
from harness.report.captions import in_turns
from harness.report.launch_summary import commit_words, data_words, days, machine_words
from harness.report.render import distinct
from harness.schema.option import conditions
from harness.schema.record import RunRecord
from harness.schema.workload import is_script


def methods(loaded: Loaded, scaling: Scaling) -> str:
    """Return a paragraph: what was trained, on what, where, with which versions, how often, how it was evaluated."""
    runs, run = loaded.valid, loaded.valid[0]
    workload, origin = run.point.workload, run.provenance
    settings = "" if is_script(workload) else "; ".join(f"{name}: {value}" for name, value in conditions(workload))
    ranks = ", ".join(str(count) for count in dict.fromkeys(point.ranks for point in scaling.points))
    low, high = scaling.repeats
    excluded = len(loaded.runs) - len(runs)
    parts = [
        f"We measured the {scaling.scaling} scaling of {workload.name} ({numbers.count(run.weights.parameters)} "
        f"trained parameters; {settings or 'settings in the script'}) on {data_words(run)} (test rows: "
        f"{numbers.count(run.data.test_rows)}; SHA-256 of the source {run.data.sha256[:16]}).",
        f"Replicas trained synchronously with TensorFlow {distinct(one.provenance.tensorflow for one in runs)} and "
        f"Keras {origin.keras} on {ranks} MPI ranks ({origin.mpi_library}, mpi4py {origin.mpi4py}; "
        f"{distinct(one.provenance.reduction for one in runs if len(one.ranks) > 1) or 'one rank, no sums'}), with "
        f"{distinct(one.point.layout.threads for one in runs)} TensorFlow thread(s) on as many cores of its own for "
        "each rank.",
        f"Hardware: {distinct((machine_words(one.provenance.machine) for one in runs), '; ')}; {origin.machine.os}. "
        f"Measured {days(one.started for one in runs)}.",
        f"Each layout was launched {numbers.span(low, high)} times, launches of all layouts interleaved in shuffled "
        "order; a launch is the sample. Its time is the median over its epochs of the slowest rank's training time "
        "after compilation and warm-up, without evaluation; a point's time is the median over launches; speedup is "
        f"the ratio of medians over {numbers.ranks(scaling.base.ranks)} ({numbers.seconds(scaling.base.seconds)}).",
        "All layouts of a repeat trained in turns on the same cores; ratios are formed within rounds of turns, their "
        "95 % intervals are Student's t over blocks."
        if in_turns(scaling)
        else "Intervals are 95 %: binomial order statistics for times, of this session only, a bootstrap over blocks "
        "of launches for ratios."
        if low >= NEEDED
        else f"With fewer than {NEEDED} launches of a layout we give no intervals there.",
        f"{numbers.plural(excluded, 'launch')} with invalid times (other load, missing cores) were excluded."
        if excluded
        else "No launch was excluded.",
        f"Software: mpi-tf-harness {origin.harness}, commit {distinct(commit_words(one.provenance) for one in runs)}; "
        f"Python {origin.python}, NumPy {origin.numpy}.",
    ]
    return " ".join(parts).replace("\u00a0", " ")


_WORKS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "vishnu2016distributed": (
        "article",
        {
            "title": "Distributed {TensorFlow} with {MPI}",
            "author": "Vishnu, Abhinav and Siegel, Charles and Daily, Jeffrey",
            "journal": "arXiv preprint arXiv:1603.02339",
            "year": "2016",
        },
    ),
    "abadi2016tensorflow": (
        "inproceedings",
        {
            "title": "{TensorFlow}: A System for Large-Scale Machine Learning",
            "author": "Abadi, Mart{\\'i}n and others",
            "booktitle": "12th USENIX Symposium on Operating Systems Design and Implementation (OSDI 16)",
            "year": "2016",
        },
    ),
    "dalcin2021mpi4py": (
        "article",
        {
            "title": "mpi4py: Status Update After 12 Years of Development",
            "author": "Dalcin, Lisandro and Fang, Yao-Lung L.",
            "journal": "Computing in Science and Engineering",
            "volume": "23",
            "number": "4",
            "pages": "47--54",
            "year": "2021",
        },
    ),
    "hoefler2015scientific": (
        "inproceedings",
        {
            "title": "Scientific Benchmarking of Parallel Computing Systems",
            "author": "Hoefler, Torsten and Belli, Roberto",
            "booktitle": "Proceedings of SC'15",
            "year": "2015",
        },
    ),
}


def bibtex(runs: Sequence[RunRecord]) -> str:
    """Return the BibTeX entries of what `runs` (at least one) rest on, with the versions that ran."""
    run, origin = runs[0], runs[0].provenance
    notes = {
        "abadi2016tensorflow": {"note": f"TensorFlow {origin.tensorflow}, Keras {origin.keras}"},
        "dalcin2021mpi4py": {"note": f"mpi4py {origin.mpi4py}, {origin.mpi_library}"},
    }
    ours = {
        "title": "{mpi-tf-harness}: scaling studies of synchronous {TensorFlow} training over {MPI}",
        "version": origin.harness,
        "note": f"commit {distinct(commit_words(one.provenance) for one in runs)}",
        "year": str(runs[-1].started.year),
    }
    entries = [_entry("misc", "mpi-tf-harness", ours)]
    entries += [_entry(kind, key, {**fields, **notes.get(key, {})}) for key, (kind, fields) in _WORKS.items()]
    if run.data.name in names() and run.data.kind == "real":
        data = info(run.data.name)
        note = f"SHA-256 of the source {run.data.sha256}"
        source = data.source.replace("&", "\\&")
        entries.append(_entry("misc", f"data-{data.name}", {"title": data.title, "howpublished": source, "note": note}))
    return "\n\n".join(entries)


def _entry(kind: str, key: str, fields: Mapping[str, str]) -> str:
    lines = ",\n".join(f"  {name} = {{{text}}}" for name, text in fields.items())
    return f"@{kind}{{{key},\n{lines}\n}}"
