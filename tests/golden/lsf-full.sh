#!/usr/bin/env bash
#BSUB -J mnist-NAME
#BSUB -n 4
#BSUB -R "span[ptile=2]"
#BSUB -gpu "num=2"
#BSUB -W 30
#BSUB -x
#BSUB -q normal
#BSUB -P p1
#BSUB -R "select[rome]"
#BSUB -u a@b.org
#BSUB -N
#BSUB -w "done(123)"
#BSUB -R "rusage[mem=4G]"
#BSUB -r
#BSUB -o /sweep/logs/%J.out

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
mapfile -t nodes < <(awk '!seen[$0]++' "$LSB_DJOB_HOSTFILE")

# As many threads as the rank has cores, in every library that would start its own.
export OMP_NUM_THREADS=1
export OPENBLAS_NUM_THREADS=1
export MKL_NUM_THREADS=1
export TF_CPP_MIN_LOG_LEVEL=2
export PYTHONUNBUFFERED=1
export HARNESS_MPI=wheel
export HARNESS_SCHEDULER=lsf
unset MPI4PY_LIBMPI
unset MPI4PY_MPIABI
export OMPI_MCA_btl_tcp_if_include=ib0
export PRTE_MCA_oob_tcp_if_include=ib0
export TMPDIR=/scratch
export UCX_TLS=rc,sm

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

launch n2x2x1-r0-KEY0 /sweep/n2x2x1-r0-KEY0 \
  /opt/venv/bin/mpirun -n 4 --map-by ppr:2:node:PE=1 --bind-to core --prtemca plm_ssh_agent blaunch --leave-session-attached --verbose --host "$(first 2 :2)" \
  /opt/venv/bin/python -m harness train \
  --point /sweep/jobs/n2x2x1-r0-KEY0.json
exit "$failed"
