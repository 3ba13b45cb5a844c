#!/usr/bin/env python3
"""A double of `flux`, which runs job scripts on this machine.

It knows batch, run, jobs, job id, cancel, resource info, uptime, hostlist, jobtap load and R encode. A job that
`flux run` starts with resources of its own, for which a plugin has to be loaded, is noted in `bypassed.txt`.

Jobs are kept in the folder that FAKE_FLUX names, a JSON file for each. States and results are those of Flux's RFC 21,
lines those of `flux jobs` with the format that the harness asks for. Ranks start by the mpirun that PATH has.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["FAKE_FLUX"])


def change(number, **fields):
    path = FOLDER / f"{number}.json"
    job = json.loads(path.read_text()) if path.exists() else {}
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(job | fields))
    temporary.replace(path)


def directives(script):
    found = dict(re.findall(r"^#flux: --([\w-]+)(?:=(.*))?$", script.read_text(), re.MULTILINE))
    unknown = set(found) - {"job-name", "nodes", "exclusive", "time-limit", "output", "nslots", "cores-per-slot"}
    if unknown:
        sys.exit(f"flux-batch: ERROR: unrecognized arguments: {unknown}")
    return found


def batch(script):
    asked = directives(Path(script))
    number = 1001 + len(list(FOLDER.glob("*.json")))
    change(number, name=asked["job-name"], state="RUN", result="", code="", nodes=f"n[1-{asked['nodes']}]")
    change(number, instance=os.environ.get("FLUX_URI", ""))
    if os.fork() == 0:
        supervise(number, script, asked)
    print(f"f{number}")


def supervise(number, script, asked):
    """Run a job's script as an instance does, and keep its state."""
    os.setsid()
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(quiet, descriptor)
    with Path(asked["output"].replace("{{id.dec}}", str(number))).open("w") as output:
        environment = os.environ | {"FAKE_FLUX_NODES": asked["nodes"], "FAKE_FLUX_JOB": str(number)}
        child = subprocess.Popen(
            ["bash", script], stdout=output, stderr=output, start_new_session=True, env=environment
        )
        change(number, pid=child.pid)
        try:
            code = child.wait(timeout=float(asked["time-limit"].removesuffix("s")))
            result = "COMPLETED" if code == 0 else "FAILED"
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            code, result = 142, "TIMEOUT"
    if (FOLDER / f"{number}.canceled").exists():
        result = "CANCELED"
    change(number, state="INACTIVE", result=result, code=str(code))
    os._exit(0)


def run(*words):
    options = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
    if "--setattr" in words:
        place = words.index("--setattr")
        name, _, resources = words[place + 1].partition("=")
        if name != "system.alloc-bypass.R" or not plugin().exists():
            sys.exit("flux-run: ERROR: the job would wait for resources that another one has")
        with (FOLDER / "bypassed.txt").open("a") as file:
            file.write(f"{options['--nodes']} {resources}\n")
        words = (*words[:place], *words[place + 2 :])
    command = words[next(place for place, word in enumerate(words) if not word.startswith("--")) :]
    os.execvp("mpirun", ["mpirun", "-n", options["--ntasks"], *command])


def plugin():
    return FOLDER / f"{os.environ['FAKE_FLUX_JOB']}.alloc-bypass"


def hostlist(*words):
    names = [f"n{number}" for number in range(1, 1 + int(os.environ["FAKE_FLUX_NODES"]))]
    limits = [int(word.partition("=")[2]) for word in words if word.startswith("--limit=")]
    print(*names[: min(limits, default=None)], sep="\n" if "--expand" in words else ",")


def jobs(*words):
    wanted = [word for word in words if word.isdigit()]
    for path in sorted(FOLDER.glob("*.json")):
        job = json.loads(path.read_text())
        active = job["state"] != "INACTIVE"
        if path.stem in wanted or (not wanted and active != ("--filter=inactive" in words)):
            cells = (path.stem, job["state"], job["result"], job["code"], job["nodes"], job["name"])
            print("|".join(cells))


def cancel(*numbers):
    for number in numbers:
        (FOLDER / f"{number}.canceled").touch()
        os.killpg(json.loads((FOLDER / f"{number}.json").read_text())["pid"], signal.SIGTERM)
        time.sleep(0.2)


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    if command == "resource":
        print("4 Nodes, 16 Cores, 0 GPUs")
    elif command == "job":
        print(words[-1].removeprefix("f"))
    elif words[:2] == ["load", "alloc-bypass.so"]:
        plugin().touch()
    elif command == "R":
        print(*words)
    elif command == "hostlist":
        hostlist(*words)
    elif command in ("batch", "run", "jobs", "cancel"):
        {"batch": batch, "run": run, "jobs": jobs, "cancel": cancel}[command](*words)
