#!/usr/bin/env bash
# mnist-dnn, 2 ranks x 2 threads, repeat 0
# Written by harness VERSION; it can be run by hand: bash n2x1x2-r0-KEY.sh
set -euo pipefail

cd /home/user

# As many threads as the rank has cores, in every library that would start its own.
export OMP_NUM_THREADS=2
export OPENBLAS_NUM_THREADS=2
export MKL_NUM_THREADS=2
export TF_CPP_MIN_LOG_LEVEL=2
export PYTHONUNBUFFERED=1
export CUDA_VISIBLE_DEVICES=-1
export HARNESS_MPI=system
export MPI4PY_LIBMPI=libmpi.so.40
unset MPI4PY_MPIABI

# The ranks cannot see how they were started: the record quotes this.
export HARNESS_LAUNCHER='/opt/mpi/bin/mpirun -n 2 --map-by slot:PE=2 --bind-to core'
exec /opt/mpi/bin/mpirun -n 2 --map-by slot:PE=2 --bind-to core \
  /opt/venv/bin/python -m harness train \
  --data-dir '/tmp/data dir' \
  --point '/tmp/a sweep/jobs/n2x1x2-r0-KEY.json' \
  --record '/tmp/a sweep/n2x1x2-r0-KEY'
