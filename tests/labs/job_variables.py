"""The variables that processes in a job of a scheduler have, as they were recorded."""

from pathlib import Path

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOBID": "4711",
    "SLURM_NNODES": "1",
    "SLURM_NTASKS": "1",
    "SLURM_CPUS_ON_NODE": "2",
    "SLURM_TASKS_PER_NODE": "1",
    "SLURM_JOB_CPUS_PER_NODE": "2",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_NODELIST": "n1",
}
SEVERAL = SLURM | {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "nid[0001,0007]", "SLURM_NODELIST": "nid[0001,0007]"}
STEP = SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "PMIX_RANK": "0"}
PBS = {"PBS_JOBID": "7.head", "PBS_ENVIRONMENT": "PBS_INTERACTIVE", "NCPUS": "2"}
LSF = {"LSB_JOBID": "8", "LSB_HOSTS": "n1"}
FLUX = {"FLUX_JOB_ID": "9", "FLUX_URI": "local:///nowhere"}


def nodefile(folder: Path, *lines: str) -> dict[str, str]:
    path = folder / f"nodes-{len(lines)}"
    path.write_text("".join(f"{line}\n" for line in lines))
    return PBS | {"PBS_NODEFILE": str(path)}
