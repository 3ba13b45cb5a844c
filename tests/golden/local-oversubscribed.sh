#!/usr/bin/env bash
# mnist-dnn, 16 ranks, repeat 0
# Written by harness VERSION; it can be run by hand: bash n16x1x1-r0-KEY.sh
set -euo pipefail

cd /home/user

# As many threads as the rank has cores, in every library that would start its own.
export OMP_NUM_THREADS=1
export OPENBLAS_NUM_THREADS=1
export MKL_NUM_THREADS=1
export TF_CPP_MIN_LOG_LEVEL=2
export PYTHONUNBUFFERED=1
export CUDA_VISIBLE_DEVICES=-1
export HARNESS_MPI=wheel
unset MPI4PY_LIBMPI
unset MPI4PY_MPIABI
export OMPI_MCA_mpi_yield_when_idle=1

# The ranks cannot see how they were started: the record quotes this.
export HARNESS_LAUNCHER='/opt/mpi/bin/mpirun -n 16 --map-by :OVERSUBSCRIBE --bind-to none'
exec /opt/mpi/bin/mpirun -n 16 --map-by :OVERSUBSCRIBE --bind-to none \
  /opt/venv/bin/python -m harness train \
  --data-dir '/tmp/data dir' \
  --point '/tmp/a sweep/jobs/n16x1x1-r0-KEY.json' \
  --record '/tmp/a sweep/n16x1x1-r0-KEY'
