#!/usr/bin/env bash
#SBATCH --job-name=mnist-NAME
#SBATCH --nodes=4
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --threads-per-core=1
#SBATCH --time=1:00:00
#SBATCH --exclusive
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output="/sweep/logs/%j.out"

# mnist-dnn, 2 launches, one after the other, up to 4 ranks
# Written by harness VERSION
set -euo pipefail

cd /home/user

jobs=/sweep/jobs
logs=/sweep/logs
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

# As many threads as the rank has cores, in every library that would start its own.
export OMP_NUM_THREADS=1
export OPENBLAS_NUM_THREADS=1
export MKL_NUM_THREADS=1
export TF_CPP_MIN_LOG_LEVEL=2
export PYTHONUNBUFFERED=1
export CUDA_VISIBLE_DEVICES=-1
export HARNESS_MPI=wheel
export HARNESS_SCHEDULER=slurm
unset MPI4PY_LIBMPI
unset MPI4PY_MPIABI
unset SLURM_EXPORT_ENV

# first K [SUFFIX]: the first K nodes of the allocation, so that every smaller launch runs inside the larger ones.
first() { local some=("${nodes[@]:0:$1}"); (IFS=, && printf '%s\n' "${some[*]/%/${2-}}"); }

failed=0
# launch NAME RECORD COMMAND...: run one point unless it is done; its log and exit code are kept beside the script.
launch() {
  local name=$1 record=$2 code=0
  shift 2
  if [ -e "$record/run.json" ]; then return; fi
  # The ranks cannot see how they were started: the record quotes this.
  HARNESS_LAUNCHER="${*%% -m harness *}" "$@" --record "$record" >"$logs/$name.log" 2>&1 || code=$?
  printf '%s\n' "$code" >"$jobs/$name.exit"
  if [ "$code" -ne 0 ]; then failed=$code; fi
}

launch n4x1x1-r0-KEY0 /sweep/n4x1x1-r0-KEY0 \
  srun --mpi=pmix --nodes=4 --ntasks=4 --ntasks-per-node=1 --cpus-per-task=1 --cpu-bind=cores --kill-on-bad-exit=1 --nodelist "$(first 4 '')" \
  /opt/venv/bin/python -m harness train \
  --point /sweep/jobs/n4x1x1-r0-KEY0.json
launch n1x1x1-r1-KEY1 /sweep/n1x1x1-r1-KEY1 \
  srun --mpi=pmix --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 --cpu-bind=cores --kill-on-bad-exit=1 --nodelist "$(first 1 '')" \
  /opt/venv/bin/python -m harness train \
  --point /sweep/jobs/n1x1x1-r1-KEY1.json
exit "$failed"
