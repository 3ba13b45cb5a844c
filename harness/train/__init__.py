"""One launch from the inside: load, train, time, evaluate, record.

In: a point, the ranks of an MPI world, prepared rows.
Out: one record: epochs, steps, weights' hash, where the ranks were.
Never: knows of sweeps, queues or pages; writes a record in part.
"""
