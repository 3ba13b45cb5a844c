"""What a page says of the scheduler's accounting."""

from dataclasses import replace

from harness.report.sweep_facts import account_facts
from harness.schema.record import Account, JobUsage


def test_accounting_in_words() -> None:
    one = JobUsage(elapsed_s=1800, nodes=4, cpu_s=3600, memory_bytes=2**30, memory_of="a process", energy_j=3.6e6)
    accounts = [
        Account(job="1", scheduler="slurm", launch="a", usage=one),
        Account(job="1", scheduler="slurm", launch="b", usage=one),  # of the same job
        Account(job="2", scheduler="slurm", launch="c", usage=replace(one, energy_j=None)),
        Account(job="3", scheduler="slurm", launch="d"),
    ]
    (fact,) = account_facts(accounts)
    assert fact.value.replace("\u00a0", " ") == (
        "4.0 node-hours of 2 jobs, processor time 2 h 00 min, memory at most 1.0 GiB in a process, "
        "energy 1.0 kWh (of 1 of them); none of 1 job: nothing is known yet"
    )
    none = Account(job="1", scheduler="slurm", launch="a", missing="sacct: Slurm accounting storage is disabled")
    assert account_facts([none])[0].value.endswith("job: sacct: Slurm accounting storage is disabled")
    assert account_facts([]) == ()
