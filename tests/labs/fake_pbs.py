#!/usr/bin/env python3
"""A double of qsub, qstat, qselect, qdel and pbsnodes: runs job scripts for real, on this machine.

The name it is called by says which command it is. Jobs are kept in the folder that FAKE_PBS names, one JSON file
each; answers are those of OpenPBS 23.06, unkind ones too. Directives are parsed and refused as qsub does.
`server.json` in the folder may set ``hold`` (jobs wait), ``nodes``, ``cpus``, ``mem``, ``history`` (off by default,
as a server's: an ended job is unknown), ``first_only`` (qstat answers for the first of several jobs, openpbs issue
2672), ``down`` (names of nodes that are down), ``silent`` (the server cannot be reached) and ``form``, what qstat's
JSON is: ``damaged``, ``bare`` (texts that look like numbers have no quotes, and its text form is of no use) or
``unreadable``.
"""

import getpass
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(os.environ["FAKE_PBS"])
RESOURCES = {"ncpus", "mpiprocs", "ompthreads", "ngpus", "mem", "host", "arch", "vnode"}
PLACES = {"free", "pack", "scatter", "vscatter", "excl", "shared", "exclhost"}


def settings():
    path = FOLDER / "server.json"
    usual = {"hold": False, "nodes": 8, "cpus": 4, "mem": "4gb", "history": False}
    usual |= {"first_only": False, "down": [], "silent": False, "form": ""}
    return usual | (json.loads(path.read_text()) if path.exists() else {})


def fail(message, code=1):
    print(message, file=sys.stderr)
    sys.exit(code)


def directives(script):
    """Return the options of the #PBS lines before the first command."""
    found = {}
    for line in script.read_text().splitlines():
        if line.startswith("#PBS"):
            match = re.fullmatch(r"#PBS -(\w) ?(\S*)", line)
            if not match:
                fail(f"qsub: directive error: {line}", 2)
            name, value = match.groups()
            if name == "l":
                name, _, value = value.partition("=")
            found[name] = value
        elif line and not line.startswith("#"):
            break
    return found


def nodefile(select, cpus):
    """Return a line for each rank, node by node; refuse what qsub refuses."""
    lines, number = [], 0
    for chunk in select.split("+"):
        count, *resources = chunk.split(":")
        asked = dict(part.split("=") for part in resources)
        unknown = set(asked) - RESOURCES
        if unknown:
            fail(f"qsub: Unknown resource: {unknown.pop()}", 188)
        if int(asked["ncpus"]) > cpus:
            fail("the double has no such node: a real server would let this wait for ever")
        for _ in range(int(count)):
            number += 1
            lines += [f"n{number}"] * int(asked["mpiprocs"])
    return lines


def qsub(script):
    script = Path(script)
    asked = directives(script)
    if set(asked["place"].split(":")) - PLACES:
        fail("qsub: Illegal attribute or resource value: place", 187)
    if not re.fullmatch(r"\d+:\d\d:\d\d", asked["walltime"]) or len(asked["N"]) > 236:
        fail("qsub: Illegal attribute or resource value", 187)
    if not all(value.isascii() for value in asked.values()):
        fail("qsub: Illegal attribute or resource value", 187)
    if asked.get("q", "").startswith("R") and "excl" in asked["place"]:
        fail("qsub: job and reservation have conflicting specification Resource_List.place", 187)
    lines = nodefile(asked["select"], settings()["cpus"])
    number = len(list(FOLDER.glob("*.number")))
    (FOLDER / f"{number}.number").touch()
    if "J" in asked:
        first, last = map(int, asked["J"].split("-"))
        tasks = {f"{number}[{index}].head": str(index) for index in range(first, last + 1)}
        change(f"{number}[].head", Job_Name=asked["N"], job_state="B", substate=100, array="True")
    else:
        tasks = {f"{number}.head": None}
    for task, index in tasks.items():
        change(task, Job_Name=asked["N"], job_state="Q", substate=10)
        if not settings()["hold"] and os.fork() == 0:
            supervise(task, script, lines, asked, index)
    print(f"{number}[].head" if "J" in asked else f"{number}.head")


def supervise(task, script, lines, asked, index):
    """Run one job and keep its state, as the server and the first node's daemon do."""
    os.setsid()
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(quiet, number)
    nodes = FOLDER / f"{task}.nodes"
    nodes.write_text("\n".join(lines) + "\n")
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "HARNESS_LOCK_DIR") if name in os.environ}
    environment |= {"PBS_JOBID": task, "PBS_NODEFILE": str(nodes), "PBS_ENVIRONMENT": "PBS_BATCH"}
    if index is not None:
        environment["PBS_ARRAY_INDEX"] = index
    begun = time.monotonic()
    # Output is spooled on the node and copied when the job has ended.
    with tempfile.NamedTemporaryFile("w+", errors="replace") as spool:
        child = subprocess.Popen(["bash", script], stdout=spool, stderr=spool, env=environment, start_new_session=True)
        hosts = "+".join(f"{line}/0" for line in dict.fromkeys(lines))
        change(task, job_state="R", substate=42, pid=child.pid, exec_host=hosts)
        end = ended(child, asked["walltime"], spool)
        shutil.copyfile(spool.name, Path(asked["o"]) / f"{task}.OU")
    if (FOLDER / f"{task}.deleted").exists():
        end = {"Exit_status": 256 + signal.SIGTERM, "substate": 91}
    word = "finished" if end["Exit_status"] == 0 else "failed"
    if end["Exit_status"] == -29:
        word = "exceeded resource walltime"
    end["resources_used"] = used(begun)
    letter = "F" if index is None else "X"
    change(task, job_state=letter, comment=f"Job run on {lines[0]} and {word}", **end)
    os._exit(0)


def used(begun):
    """Return what the server says that a job used: of its children's rusage, and the time it had."""
    rusage, wall = resource.getrusage(resource.RUSAGE_CHILDREN), round(time.monotonic() - begun)
    cpu = round(rusage.ru_utime + rusage.ru_stime)
    clock = [f"{value // 3600:02d}:{value % 3600 // 60:02d}:{value % 60:02d}" for value in (wall, cpu)]
    return {"walltime": clock[0], "cput": clock[1], "mem": f"{rusage.ru_maxrss}kb", "ncpus": settings()["cpus"]}


def ended(child, walltime, spool):
    """Wait for a job's script and return what the server says of its end."""
    hours, minutes, seconds = map(int, walltime.split(":"))
    limit = hours * 3600 + minutes * 60 + seconds
    try:
        code = child.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        print(f"=>> PBS: job killed: walltime {limit + 1} exceeded limit {limit}", file=spool, flush=True)
        return {"Exit_status": -29, "substate": 93}
    return {"Exit_status": code if code >= 0 else 256 - code, "substate": 92 if code == 0 else 93}


def change(task, **fields):
    path = FOLDER / f"{task}.job"
    job = json.loads(path.read_text()) if path.exists() else {}
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(job | fields))
    temporary.replace(path)


def jobs():
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.job"))}


def over(job):
    return job["job_state"] in "FX"


def parent(name):
    return re.sub(r"\[\d+\]", "[]", name)


def qstat(*words):
    if words == ("--version",):
        print("pbs_version = 23.06.06")
        return
    if words == ("-B",):
        print("head Active")
        return
    with (FOLDER / "calls.txt").open("a") as file:
        print("qstat", file=file)
    asked = [word for word in words if word.endswith(".head")]
    if "-x" in words and not settings()["history"]:
        print("qstat: Server head is not configured to maintain job history", file=sys.stderr)
        print(json.dumps({"pbs_version": "23.06.06"}))
        return
    every = jobs()
    # An array goes on until its last task; its ended tasks stay until then.
    living = {parent(name) for name, job in every.items() if not over(job) and "[]" not in name}
    known = {
        name: job
        for name, job in every.items()
        if "-x" in words or (parent(name) in living if "[" in name else not over(job))
    }
    found = {name: known[name] for name in (asked[:1] if settings()["first_only"] else asked) if name in known}
    say(found, "json" in words)
    if (len(found) < len(asked) and not settings()["first_only"]) or not found:
        finished = [name for name in asked if name in every and name not in known]
        if finished and settings()["history"]:
            fail(f"qstat: {finished[0]} Job has finished, use -x or -H to obtain historical job information", 35)
        fail("qstat: Unknown Job Id", 153)


def say(found, as_json):
    """Print the jobs as qstat -f does, in the form that the server's settings ask for."""
    form = settings()["form"]
    if not as_json:
        if form in ("bare", "unreadable"):
            print("qstat")
            return
        for name, job in found.items():
            print(f"Job Id: {name}")
            flat = {key: value for key, value in job.items() if not isinstance(value, dict)}
            flat |= {f"resources_used.{key}": value for key, value in job.get("resources_used", {}).items()}
            for key, value in flat.items():
                text = f"    {key} = {value}"
                print(text[:79] + "".join(f"\n\t{text[at : at + 71]}" for at in range(79, len(text), 71)))
            print("    Variable_List = PBS_O_HOME=/root,NOTE=a\n\tb,PBS_O_HOST=head\n")
        return
    answer = {"pbs_version": "23.06.06"}
    text = json.dumps(answer | ({"Jobs": found} if found else {}))
    if form == "damaged":
        text = text.replace('"Job_Name"', '"comment_of": "she said "no"", "Job_Name"')
    elif form == "bare":
        text = text.replace('"Job_Name"', '"Variable_List": {"PBS_O_LOGNAME":007123,"PART":.5,"X":-}, "Job_Name"')
    elif form == "unreadable" and found:
        text = text[:-7]
    print(text)


def qselect(*words):
    if [word for word in words if word != "-x"] != ["-u", getpass.getuser()]:
        print("999.head")  # somebody else's
    # Arrays, not their tasks.
    living = {parent(name) for name, job in jobs().items() if (not over(job) or "-x" in words) and "[]" not in name}
    print("\n".join(sorted(living)))


def qdel(*names):
    for name in names:
        job = jobs().get(name, {})
        if job.get("job_state") == "R":
            (FOLDER / f"{name}.deleted").touch()
            os.killpg(job["pid"], signal.SIGTERM)
            time.sleep(0.3)
            try:
                os.killpg(job["pid"], signal.SIGKILL)
            except ProcessLookupError:
                continue
        elif job.get("job_state") == "Q":
            change(name, job_state="X" if "[" in name else "F", substate=92)


def pbsnodes():
    server = settings()
    there = {"ncpus": server["cpus"], "ngpus": 4, "mem": server["mem"]}
    nodes = {
        f"n{number + 1}": {
            "Mom": f"n{number + 1}.cluster",
            "state": "state-unknown,down" if f"n{number + 1}" in server["down"] else "free",
            "resources_available": there,
        }
        for number in range(server["nodes"])
    }
    print(json.dumps({"pbs_version": "23.06.06", "nodes": nodes}))


if __name__ == "__main__":
    command = Path(sys.argv[0]).name
    if settings()["silent"] and sys.argv[1:] != ["--version"]:
        print("Connection refused", file=sys.stderr)
        fail(f"{command}: cannot connect to server head (errno=15010)", 255)
    if command in ("qsub", "qstat", "qdel", "qselect"):
        {"qsub": qsub, "qstat": qstat, "qdel": qdel, "qselect": qselect}[command](*sys.argv[1:])
    else:
        pbsnodes()
