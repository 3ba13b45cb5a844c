#!/bin/bash
#SBATCH --job-name=scaling-check
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --time=01:00:00
#SBATCH --output=scaling-check-%j.out
#
# Does training still scale here as the baseline says? From the harness's folder, every night at two (scrontab -e):
#   0 2 * * *  cd /path/to/mpi-tf-harness && sbatch jobs/recipes/slurm-nightly.sh
# BASELINE names the baseline, MAIL_TO who gets the answer of a night that is not a pass.
# Exit code: that of `harness check`. 0 nothing got worse, 1 a regression, 2 cannot compare, 3 cannot tell.
set -u

HARNESS=${HARNESS:-.venv/bin/harness}
BASELINE=${BASELINE:-main}

# The job has its node for itself: the launches run inside it, on any node of the partition.
"$HARNESS" check --against "$BASELINE" --other-machine --scheduler local --until-sure 40 \
    --format markdown --output scaling-check.md --format junit --output scaling-check.xml
code=$?

if [ "$code" -ne 0 ] && [ -n "${MAIL_TO:-}" ] && [ -f scaling-check.md ]; then
    mail -s "scaling check against $BASELINE: exit code $code" "$MAIL_TO" < scaling-check.md
fi
exit "$code"
