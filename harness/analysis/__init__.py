"""Numbers from records: pure, DataFrames in and out.

In: the folder of a sweep: records, turns, failures.
Out: tables (pandas) and estimates with their intervals.
Never: writes a file, words a page, or leaves out a time by a rule that looks at the times.
"""
