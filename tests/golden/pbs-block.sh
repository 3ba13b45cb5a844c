#!/usr/bin/env bash
#PBS -N mnist-NAME
#PBS -S /bin/bash
#PBS -l select=4:ncpus=1:mpiprocs=1:ompthreads=1
#PBS -l place=scatter:excl
#PBS -l walltime=0:30:00
#PBS -r n
#PBS -j oe
#PBS -o /sweep/logs/

# mnist-dnn, 2 launches, block, up to 4 ranks
# Written by harness VERSION
set -euo pipefail

cd /home/user

jobs=/sweep/jobs
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

# Nodes on which Python does not start are left out: launches on fewer nodes go on without them.
checks=$(mktemp -d)
touch "$checks/${nodes[0]}" # which runs this script
for node in "${nodes[@]:1}"; do
  { timeout 120 "$jobs"/remote.sh "$node" /opt/venv/bin/python -V && touch "$checks/$node"; } </dev/null >&2 &
done
wait
whole=() lost=()
for node in "${nodes[@]}"; do
  if [ -e "$checks/$node" ]; then whole+=("$node"); else lost+=("$node"); fi
done
rm -r "$checks"
nodes=("${whole[@]}")

# launch NAME NODES COMMAND...: keep the command of one layout, as it is on these nodes, for the blocks that train there.
launch() {
  if [ "$2" -gt "${#nodes[@]}" ]; then
    echo "harness: needs $2 nodes, and ${lost[*]} failed the check at the start of the job" >"$jobs/$1.lost"
    return
  fi
  printf '%s\0' "${@:3}" >"$jobs/$1.words"
}

launch n4x1x1-r0-KEY0 4 \
  /opt/venv/bin/mpirun -n 4 --map-by ppr:1:node:PE=1 --bind-to core --prtemca plm_ssh_agent "$jobs"/remote.sh --leave-session-attached --host "$(first 4 :1)" \
  /opt/venv/bin/python -m harness train
launch n1x1x1-r0-KEY1 1 \
  /opt/venv/bin/mpirun -n 1 --map-by ppr:1:node:PE=1 --bind-to core --host "$(first 1 :1)" \
  /opt/venv/bin/python -m harness train

# They train in turns, block after block. The time limit counts from the start of this script.
exec /opt/venv/bin/python -m harness.cli.job_blocks /sweep/jobs/block-mnist-NAME.json "${nodes[-1]}" "$SECONDS"
