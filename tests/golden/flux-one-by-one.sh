#!/usr/bin/env bash
#flux: --job-name=mnist-NAME
#flux: --nodes=4
#flux: --exclusive
#flux: --time-limit=3600s
#flux: --output=/sweep/logs/{{id.dec}}.out

# mnist-dnn, 2 launches, one after the other, up to 4 ranks
# Written by harness VERSION
set -euo pipefail

cd /home/user

jobs=/sweep/jobs
logs=/sweep/logs
# The launches of a block share cores, which the instance's scheduler would give to one job at a time.
flux jobtap load alloc-bypass.so

# As many threads as the rank has cores, in every library that would start its own.
export OMP_NUM_THREADS=1
export OPENBLAS_NUM_THREADS=1
export MKL_NUM_THREADS=1
export TF_CPP_MIN_LOG_LEVEL=2
export PYTHONUNBUFFERED=1
export CUDA_VISIBLE_DEVICES=-1
export HARNESS_MPI=wheel
export HARNESS_SCHEDULER=flux
unset MPI4PY_LIBMPI
unset MPI4PY_MPIABI

# first K: the cores of the first K nodes of this instance, for a job that its scheduler is not asked for.
first() {
  local ranks
  ranks=$(seq -s, 0 $(($1 - 1)))
  printf 'system.alloc-bypass.R=%s\n' "$(flux R encode --ranks="$ranks" --hosts="$(flux hostlist --limit="$1" instance)" \
    --cores=0)"
}

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
  flux run --nodes=4 --ntasks=4 --cores-per-task=1 --setopt=pmi=pmix --setopt=cpu-affinity=per-task --setopt=exit-on-error --setattr "$(first 4 '')" \
  /opt/venv/bin/python -m harness train \
  --point /sweep/jobs/n4x1x1-r0-KEY0.json
launch n1x1x1-r1-KEY1 /sweep/n1x1x1-r1-KEY1 \
  flux run --nodes=1 --ntasks=1 --cores-per-task=1 --setopt=pmi=pmix --setopt=cpu-affinity=per-task --setopt=exit-on-error --setattr "$(first 1 '')" \
  /opt/venv/bin/python -m harness train \
  --point /sweep/jobs/n1x1x1-r1-KEY1.json
exit "$failed"
