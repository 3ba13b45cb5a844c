#!/usr/bin/env bash
#SBATCH --job-name=mnist-NAME
#SBATCH --nodes=4
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --threads-per-core=1
#SBATCH --time=0:30:00
#SBATCH --exclusive
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output="/sweep/logs/%j.out"

# mnist-dnn, 2 launches, block, up to 4 ranks
# Written by harness VERSION
set -euo pipefail

cd /home/user

jobs=/sweep/jobs
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
export SLURM_OVERLAP=1

# first K [SUFFIX]: the first K nodes of the allocation, so that every smaller launch runs inside the larger ones.
first() { local some=("${nodes[@]:0:$1}"); (IFS=, && printf '%s\n' "${some[*]/%/${2-}}"); }

# Nodes on which Python does not start are left out: launches on fewer nodes go on without them.
checks=$(mktemp -d)
touch "$checks/${nodes[0]}" # which runs this script
for node in "${nodes[@]:1}"; do
  { timeout 120 srun --overlap --nodes=1 --ntasks=1 --nodelist "$node" /opt/venv/bin/python -V && touch "$checks/$node"; } </dev/null >&2 &
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
  /opt/venv/bin/mpirun -n 4 --map-by ppr:1:node:PE=1 --bind-to core --host "$(first 4 :1)" \
  /opt/venv/bin/python -m harness train
launch n1x1x1-r0-KEY1 1 \
  /opt/venv/bin/mpirun -n 1 --map-by ppr:1:node:PE=1 --bind-to core --host "$(first 1 :1)" \
  /opt/venv/bin/python -m harness train

# They train in turns, block after block. The time limit counts from the start of this script.
exec /opt/venv/bin/python -m harness.cli.job_blocks /sweep/jobs/block-mnist-NAME.json "${nodes[-1]}" "$SECONDS"
