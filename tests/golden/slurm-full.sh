#!/usr/bin/env bash
#SBATCH --job-name=mnist-NAME
#SBATCH --nodes=2
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --threads-per-core=1
#SBATCH --gpus-per-node=2
#SBATCH --time=0:30:00
#SBATCH --mem=16G
#SBATCH --partition=gpu
#SBATCH --account=physics
#SBATCH --qos=high
#SBATCH --constraint=rome
#SBATCH --signal=B:USR1@60
#SBATCH --dependency=afterok:123
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --gres=nvme:1
#SBATCH --comment="two words"
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/sweep/logs/%j.out"

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
export HARNESS_SCHEDULER=slurm
unset MPI4PY_LIBMPI
unset MPI4PY_MPIABI
export OMPI_MCA_btl_tcp_if_include=ib0
export PRTE_MCA_oob_tcp_if_include=ib0
unset SLURM_EXPORT_ENV
export TMPDIR=/scratch
export UCX_TLS=rc,sm

ended='' ranks=''
trap 'ended=1; [ -z "$ranks" ] || kill -USR1 "$ranks" || true' USR1
failed=0
again=''
# launch NAME RECORD COMMAND...: run one point unless it is done; its log and exit code are kept beside the script.
launch() {
  local name=$1 record=$2 code=0
  shift 2
  if [ -e "$record/run.json" ]; then return; fi
  # There is no time left for another one.
  if [ -n "$ended" ]; then return; fi
  # The ranks cannot see how they were started: the record quotes this.
  HARNESS_LAUNCHER="${*%% -m harness *}" "$@" --record "$record" >"$logs/$name.log" 2>&1 &
  ranks=$!
  if [ -n "$ended" ]; then kill -USR1 "$ranks" || true; fi
  # The trap interrupts the first wait; the second one gets the exit code.
  wait "$ranks" || true
  wait "$ranks" || code=$?
  ranks=''
  if [ -n "$ended" ] && [ "$code" -ne 0 ] && [ "$code" -ne 75 ]; then
    echo "harness: ended 60 s before the time limit: ask for a longer WALLTIME" >>"$logs/$name.log"
  fi
  printf '%s\n' "$code" >"$jobs/$name.exit"
  if [ "$code" -ne 0 ]; then failed=$code; fi
  # It has written a checkpoint, from which it goes on when it is started again.
  if [ "$code" -eq 75 ]; then again=$name; fi
}

launch n2x2x1-r0-KEY0 /sweep/n2x2x1-r0-KEY0 \
  srun --mpi=pmix --nodes=2 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=1 --gpus-per-node=2 --cpu-bind=cores --kill-on-bad-exit=1 --verbose \
  /opt/venv/bin/python -m harness train \
  --point /sweep/jobs/n2x2x1-r0-KEY0.json
if [ -n "$again" ]; then
  rm -f "$jobs/$again.exit"
  scontrol requeue "$SLURM_JOB_ID" || printf '75\n' >"$jobs/$again.exit"
fi
exit "$failed"
