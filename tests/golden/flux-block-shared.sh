#!/usr/bin/env bash
#flux: --job-name=mnist-NAME
#flux: --nodes=2
#flux: --nslots=4
#flux: --cores-per-slot=1
#flux: --gpus-per-slot=1
#flux: --time-limit=1800s
#flux: --output=/sweep/logs/{{id.dec}}.out

# mnist-dnn, 4 ranks on 2 nodes x 1 GPU, repeat 0
# Written by harness VERSION
set -euo pipefail

cd /home/user

jobs=/sweep/jobs
mapfile -t nodes < <(flux hostlist --expand --delimiter='\n' instance)
# The launches of a block share cores, which the instance's scheduler would give to one job at a time.
flux jobtap load alloc-bypass.so

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

# first K: the cores of the first K nodes of this instance, for a job that its scheduler is not asked for.
first() {
  local ranks
  ranks=$(seq -s, 0 $(($1 - 1)))
  printf 'system.alloc-bypass.R=%s\n' "$(flux kvs get resource.R | flux R decode --include="$ranks")"
}

# launch NAME NODES COMMAND...: keep the command of one layout, as it is on these nodes, for the blocks that train there.
launch() {
  printf '%s\0' "${@:3}" >"$jobs/$1.words"
}

launch n2x2x1-r0-KEY0 2 \
  flux run --nodes=2 --ntasks=4 --cores-per-task=1 --gpus-per-task=1 --setopt=pmi=pmix --setopt=cpu-affinity=per-task --setopt=exit-on-error --setattr "$(first 2 '')" \
  /opt/venv/bin/python -m harness train

# They train in turns, block after block. The time limit counts from the start of this script.
exec /opt/venv/bin/python -m harness.cli.job_blocks /sweep/jobs/block-mnist-NAME.json "${nodes[-1]}" "$SECONDS"
