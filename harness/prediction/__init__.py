"""What more ranks than were launched would take, from measured launches and measured or stated links.

In: measured launches, and measured or stated links.
Out: times of rank counts that did not run, with intervals.
Never: mixes a predicted number with a measured one in one column.
"""
