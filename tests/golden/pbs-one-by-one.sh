#!/usr/bin/env bash
#PBS -N mnist-NAME
#PBS -S /bin/bash
#PBS -l select=4:ncpus=1:mpiprocs=1:ompthreads=1
#PBS -l place=scatter:excl
#PBS -l walltime=1:00:00
#PBS -r n
#PBS -j oe
#PBS -o /sweep/logs/

# mnist-dnn, 2 launches, one after the other, up to 4 ranks
# Written by harness VERSION
set -euo pipefail

cd /home/user

jobs=/sweep/jobs
logs=/sweep/logs
mapfile -t nodes < <(awk '!seen[$0]++' "$PBS_NODEFILE")

# As many threads as the rank has cores, in every library that would start its own.
export OMP_NUM_THREADS=1
export OPENBLAS_NUM_THREADS=1
export MKL_NUM_THREADS=1
export TF_CPP_MIN_LOG_LEVEL=2
export PYTHONUNBUFFERED=1
export CUDA_VISIBLE_DEVICES=-1
export HARNESS_MPI=wheel
export HARNESS_SCHEDULER=pbs
unset MPI4PY_LIBMPI
unset MPI4PY_MPIABI

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
  /opt/venv/bin/mpirun -n 4 --map-by ppr:1:node:PE=1 --bind-to core --prtemca plm_ssh_agent "$jobs"/remote.sh --leave-session-attached --host "$(first 4 :1)" \
  /opt/venv/bin/python -m harness train \
  --point /sweep/jobs/n4x1x1-r0-KEY0.json
launch n1x1x1-r1-KEY1 /sweep/n1x1x1-r1-KEY1 \
  /opt/venv/bin/mpirun -n 1 --map-by ppr:1:node:PE=1 --bind-to core --host "$(first 1 :1)" \
  /opt/venv/bin/python -m harness train \
  --point /sweep/jobs/n1x1x1-r1-KEY1.json
exit "$failed"
