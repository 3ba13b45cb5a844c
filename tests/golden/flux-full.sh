#!/usr/bin/env bash
#flux: --job-name=mnist-NAME
#flux: --nodes=2
#flux: --nslots=4
#flux: --cores-per-slot=1
#flux: --gpus-per-slot=1
#flux: --time-limit=1800s
#flux: --queue=batch
#flux: --bank=physics
#flux: --requires=rome
#flux: --dependency=afterok:123
#flux: --urgency=20
#flux: --output=/sweep/logs/{{id.dec}}.out

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
export HARNESS_SCHEDULER=flux
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
  flux run --nodes=2 --ntasks=4 --cores-per-task=1 --gpus-per-task=1 --setopt=pmi=pmix --setopt=cpu-affinity=per-task --setopt=exit-on-error --verbose \
  /opt/venv/bin/python -m harness train \
  --point /sweep/jobs/n2x2x1-r0-KEY0.json
exit "$failed"
