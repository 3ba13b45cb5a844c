#!/usr/bin/env python3
"""A double of the commands of Slurm, PBS and Flux whose submissions fail in the ways of real ones; jobs only wait.

The name it is called by says which command it is. `FAKE_QUEUE` names its folder: ``jobs/<number>.json`` are the
accepted jobs, ``submissions.txt`` has a line for each submission, ``faults.json`` is a list of what becomes of the next
ones:

``accept_then_fail`` queues the job and reports an error, ``fail_first`` reports one only, ``answer_late`` takes a
second to answer, ``accept_then_hang`` and ``hang_first`` do not answer, ``accept_after_fail`` reports an error a second
before the job is queued, ``no_number`` ends well without a number, ``accept_then_run`` has the job end with an exit
code before the error is reported, ``kill_then_accept`` kills the command that submits and then takes a second, and
``accept_then_kill`` does it the other way round. Any other text is what the command prints and fails with, ``CODE:`` in
front of it the exit code. ``always.json`` names layouts' number of nodes that are refused with a text each time.

A job's `state` is ``queued``, ``running``, ``strange`` (a word that nobody knows) or ``ended``. One that is ``hidden``
is listed by no answer, and one that is ``forgotten`` has ended, and the scheduler says that it does not know it. A
job's ``squeue`` is what squeue says of it.
"""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ.get("FAKE_QUEUE", ""))
JOBS = FOLDER / "jobs"
LOST = {
    "sbatch": "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
    "qsub": "qsub: cannot connect to server head (errno=15010)",
    "flux": "flux-batch: ERROR: [Errno 111] Unable to connect to Flux: Connection refused",
}


def fail(message, code=1):
    print(message, file=sys.stderr)
    sys.exit(code)


def read(name, default):
    path = FOLDER / name
    return json.loads(path.read_text()) if path.exists() else default


def submit(command, script):
    text = Path(script).read_text()
    with (FOLDER / "submissions.txt").open("a") as file:
        print(Path(script).name, file=file)
    nodes = re.search(r"--nodes=(\d+)|select=(\d+)", text)
    always = read("always.json", {}).get(nodes[1] or nodes[2]) if nodes else None
    if always:
        fail(always)
    faults = read("faults.json", [])
    fault = faults.pop(0) if faults else "ok"
    (FOLDER / "faults.json").write_text(json.dumps(faults))
    act(fault, command, script, text)


def act(fault, command, script, text):
    if fault in ("ok", "answer_late"):
        number = accept(command, text)
        time.sleep(1 if fault == "answer_late" else 0)
        print(number)
    elif fault == "no_number":
        accept(command, text)
    elif fault == "accept_then_hang":
        accept(command, text)
        time.sleep(60)
    elif fault == "hang_first":
        time.sleep(60)
    elif fault == "accept_after_fail":
        if os.fork() == 0:
            os.setsid()
            for number in range(3):
                os.dup2(os.open(os.devnull, os.O_RDWR), number)
            time.sleep(1)
            accept(command, text)
            os._exit(0)
        fail(LOST[command])
    elif fault == "kill_then_accept":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1)
        accept(command, text)
    elif fault == "accept_then_kill":
        accept(command, text)
        os.kill(os.getppid(), signal.SIGKILL)
    elif fault == "accept_then_fail":
        accept(command, text)
        fail(LOST[command])
    elif fault == "accept_then_run":
        accept(command, text, state="ended")
        for point in re.findall(r"--point (\S+)\.json", text.replace("'", "")) or [script]:
            Path(f"{point}.exit").write_text("3\n")
        fail(LOST[command])
    elif fault == "fail_first":
        fail(LOST[command])
    else:
        code, _, message = fault.partition(":") if fault[:1].isdigit() else ("1", "", fault)
        fail(message, int(code))


def accept(command, text, state="queued"):
    JOBS.mkdir(exist_ok=True)
    number = 101 + len(list(JOBS.iterdir()))
    name = re.search(r"^#SBATCH --job-name=(\S+)|^#PBS -N (\S+)|^#flux: --job-name=(\S+)", text, re.MULTILINE)
    tasks = re.search(r"^#SBATCH --array=0-(\d+)|^#PBS -J 0-(\d+)", text, re.MULTILINE)
    job = {
        "name": next(filter(None, name.groups())),
        "tasks": 1 + int(next(filter(None, tasks.groups()))) if tasks else 0,
        "state": state,
    }
    (JOBS / f"{number}.json").write_text(json.dumps(job))
    return f"{number}[].head" if command == "qsub" and tasks else f"{number}.head" if command == "qsub" else number


def jobs():
    every = {path.stem: json.loads(path.read_text()) for path in sorted(JOBS.glob("*.json"))}
    return {number: job for number, job in every.items() if job["state"] not in ("hidden", "forgotten")}


def forgotten(identifier):
    """Return whether a job of that identifier has been forgotten."""
    path = JOBS / f"{re.match(r'[0-9]+', identifier)[0]}.json"
    return not path.exists() or json.loads(path.read_text())["state"] == "forgotten"


def scontrol(*words):
    if words[:2] == ("show", "job") and forgotten(words[2]):
        fail("slurm_load_jobs error: Invalid job id specified")


WORDS = {"queued": "PENDING|Resources", "running": "RUNNING|None", "strange": "EXPEDITING|None"}


def squeue(*words):
    for number, job in jobs().items():
        word = WORDS.get(job["state"], "FAILED|NonZeroExitCode")
        cells = job.get("squeue") or f"{word}||0|N/A"
        for task in [f"{number}_{index}" for index in range(job["tasks"])] or [number]:
            print(f"{task}|{cells}|{job['name']}")


def sinfo(*words):
    asked = " ".join(words)
    if "%P|%D" in asked:
        print("normal*|8|1|4|4000|(null)|1:00:00")
    elif "%N|%n" in asked:
        print("n1|host1\nn2|host2")
    else:
        print("normal*")


def identifier(number, job):
    return f"{number}[].head" if job["tasks"] else f"{number}.head"


def qselect(*words):
    for number, job in jobs().items():
        if job["state"] != "ended" or "-x" in words:
            print(identifier(number, job))


def qstat(*words):
    if words == ("--version",):
        print("pbs_version = 23.06.06")
    elif words == ("-B",):
        print("head Active")
    elif len(words) == 1:
        if forgotten(words[0]):
            fail(f"qstat: Unknown Job Id {words[0]}", 153)
    else:
        letter = {"queued": "Q", "running": "R", "strange": "M", "ended": "F"}
        table = {}
        for number, job in jobs().items():
            entry = {"Job_Name": job["name"], "job_state": letter[job["state"]], "substate": 10}
            entry |= {"Exit_status": 3, "substate": 93, "exec_host": "n1/0"} if job["state"] == "ended" else {}
            names = [identifier(number, job), *(f"{number}[{index}].head" for index in range(job["tasks"]))]
            table |= {name: entry for name in names if name in words}
        print(json.dumps({"Jobs": table}))


def pbsnodes(*words):
    node = {"state": "free", "resources_available": {"ncpus": 4, "mem": "4gb"}}
    print(json.dumps({"nodes": {f"n{number}": node for number in range(1, 9)}}))


def flux(*words):
    if words[0] == "batch":
        submit("flux", words[-1])
    elif words[:2] == ("job", "id"):
        print(words[-1])
    elif words[:2] == ("resource", "info"):
        print("8 Nodes, 32 Cores, 0 GPUs")
    elif words[0] == "jobs":
        ended = "--filter=inactive" in words
        asked = [word for word in words if word.isdigit()]
        for number in filter(forgotten, asked):
            print(f"JobID {number} unknown", file=sys.stderr)
        word_of = {"queued": "SCHED|||", "running": "RUN|||n1", "strange": "MIGRATING|||n1"}
        for number, job in jobs().items():
            if number in asked or (not asked and ended == (job["state"] == "ended")):
                word = word_of.get(job["state"], "INACTIVE|FAILED|3|n1")
                print(f"{number}|{word}|{job['name']}")


def answer(command, *words):
    if command in ("sbatch", "qsub"):
        submit(command, words[-1])
    elif command == "sacct":
        fail("Slurm accounting storage is disabled")
    elif command in ("squeue", "scontrol", "sinfo", "qselect", "qstat", "pbsnodes", "flux"):
        globals()[command](*words)


if __name__ == "__main__":
    answer(Path(sys.argv[0]).name, *sys.argv[1:])
