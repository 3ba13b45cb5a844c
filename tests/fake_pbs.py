#!/usr/bin/env python3
"""A double of qsub, qstat, qselect, qdel and pbsnodes: runs job scripts for real, on this machine.

The name it is called by says which command it is. Jobs are kept in the folder that FAKE_PBS names, one JSON file
each; answers have the fields of OpenPBS 23.06. Directives are parsed and refused as qsub does. `server.json` in the
folder may set `hold` (jobs wait), `nodes` and `cpus`.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

FOLDER = Path(os.environ["FAKE_PBS"])
RESOURCES = {"ncpus", "mpiprocs", "ompthreads", "ngpus", "mem", "host", "arch", "vnode"}
PLACES = {"free", "pack", "scatter", "vscatter", "excl", "shared", "exclhost"}


def settings():
    path = FOLDER / "server.json"
    return {"hold": False, "nodes": 8, "cpus": 4} | (json.loads(path.read_text()) if path.exists() else {})


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
    lines = nodefile(asked["select"], settings()["cpus"])
    number = len(list(FOLDER.glob("*.number")))
    (FOLDER / f"{number}.number").touch()
    if "J" in asked:
        first, last = map(int, asked["J"].split("-"))
        tasks = {f"{number}[{index}].head": str(index) for index in range(first, last + 1)}
    else:
        tasks = {f"{number}.head": None}
    for task, index in tasks.items():
        change(task, Job_Name=asked["N"], job_state="Q", substate=10)
        if not settings()["hold"] and os.fork() == 0:
            supervise(task, script, lines, asked["o"], index)
    print(f"{number}[].head" if "J" in asked else f"{number}.head")


def supervise(task, script, lines, folder, index):
    """Run one job and keep its state, as the server and the first node's daemon do."""
    os.setsid()
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(quiet, number)
    nodes = FOLDER / f"{task}.nodes"
    nodes.write_text("\n".join(lines) + "\n")
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment |= {"PBS_JOBID": task, "PBS_NODEFILE": str(nodes), "PBS_ENVIRONMENT": "PBS_BATCH"}
    if index is not None:
        environment["PBS_ARRAY_INDEX"] = index
    with (Path(folder) / f"{task}.OU").open("w") as out:
        child = subprocess.Popen(["bash", script], stdout=out, stderr=out, env=environment, start_new_session=True)
    hosts = "+".join(f"{line}/0" for line in dict.fromkeys(lines))
    change(task, job_state="R", substate=42, pid=child.pid, exec_host=hosts)
    code = child.wait()
    end = {"Exit_status": code if code >= 0 else 256 - code, "substate": 92 if code == 0 else 91 if code < 0 else 93}
    word = "finished" if code == 0 else "failed"
    change(task, job_state="F", comment=f"Job run on {lines[0]} and {word}", **end)
    os._exit(0)


def change(task, **fields):
    path = FOLDER / f"{task}.job"
    job = json.loads(path.read_text()) if path.exists() else {}
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(job | fields))
    temporary.replace(path)


def jobs():
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.job"))}


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
    known = jobs()
    found = {name: known[name] for name in asked if name in known}
    print(json.dumps({"pbs_version": "23.06.06", "Jobs": found}))
    if len(found) < len(asked):
        fail("qstat: Unknown Job Id", 153)


def qselect():
    print("\n".join(name for name, job in jobs().items() if job["job_state"] != "F"))


def qdel(*names):
    for name in names:
        job = jobs().get(name, {})
        if job.get("job_state") == "R":
            os.killpg(job["pid"], signal.SIGKILL)
        elif job.get("job_state") == "Q":
            change(name, job_state="F", substate=91)


def pbsnodes():
    there = {"ncpus": settings()["cpus"], "ngpus": 4}
    nodes = {f"n{number + 1}": {"state": "free", "resources_available": there} for number in range(settings()["nodes"])}
    print(json.dumps({"pbs_version": "23.06.06", "nodes": nodes}))


if __name__ == "__main__":
    command = Path(sys.argv[0]).name
    if command in ("qsub", "qstat", "qdel"):
        {"qsub": qsub, "qstat": qstat, "qdel": qdel}[command](*sys.argv[1:])
    else:
        {"qselect": qselect, "pbsnodes": pbsnodes}[command]()
