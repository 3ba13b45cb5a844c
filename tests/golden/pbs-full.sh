#!/usr/bin/env bash
#PBS -N mnist-NAME
#PBS -S /bin/bash
#PBS -l select=2:ncpus=2:mpiprocs=2:ompthreads=1:ngpus=2:mem=16gb:rome=True
#PBS -l place=scatter:excl
#PBS -l walltime=0:30:00
#PBS -q workq
#PBS -A physics
#PBS -P p1
#PBS -W depend=afterok:123
#PBS -l software=x -V
#PBS -r y
#PBS -j oe
#PBS -o /sweep/logs/

# mnist-dnn, 4 ranks on 2 nodes x 1 GPU, repeat 0
# Written by harness VERSION
set -euo pipefail

cd /home/user
# Sites' own scripts use variables that are not set.
set +u
module load gcc/12
module load openmpi
ulimit -s unlimited
set -u

jobs=/sweep/jobs
logs=/sweep/logs

# As many threads as the rank has cores, in every library that would start its own.
export OMP_NUM_THREADS=1
export OPENBLAS_NUM_THREADS=1
export MKL_NUM_THREADS=1
export TF_CPP_MIN_LOG_LEVEL=2
export PYTHONUNBUFFERED=1
export HARNESS_MPI=wheel
export HARNESS_SCHEDULER=pbs
unset MPI4PY_LIBMPI
unset MPI4PY_MPIABI
export OMPI_MCA_btl_tcp_if_include=ib0
export PRTE_MCA_oob_tcp_if_include=ib0
export TMPDIR=/scratch
export UCX_TLS=rc,sm

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

launch n2x2x1-r0-KEY0 /sweep/n2x2x1-r0-KEY0 \
  /opt/venv/bin/mpirun -n 4 --map-by ppr:2:node:PE=1 --bind-to core --prtemca plm_ssh_agent "$jobs"/remote.sh --leave-session-attached --verbose \
  /opt/venv/bin/python -m harness train \
  --point /sweep/jobs/n2x2x1-r0-KEY0.json
exit "$failed"
