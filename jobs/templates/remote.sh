#!/bin/sh
# Starts mpirun's daemon on another node of the PBS job: HOST COMMAND..., as mpirun calls ssh.
# PBS's own pbs_tmrsh keeps the daemon inside the job, its limits and its accounting; without it ssh must do.
host=$1
shift
if [ -r /etc/pbs.conf ] && [ -z "${PBS_EXEC-}" ]; then
  PBS_EXEC=$(sed -n 's/^PBS_EXEC=//p' /etc/pbs.conf)
fi
for tmrsh in "$(command -v pbs_tmrsh)" "${PBS_EXEC-}/bin/pbs_tmrsh"; do
  if [ -x "$tmrsh" ]; then
    exec "$tmrsh" "$host" /bin/sh -c "$*"
  fi
done
exec ssh -x -o BatchMode=yes "$host" "$@"
