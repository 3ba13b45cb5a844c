"""The vocabulary as frozen dataclasses: pure, without input or output, imported by every floor above.

In: the words of settings, and the JSON of records.
Out: frozen dataclasses that refuse what is wrong in one sentence, and the names of a sweep's files.
Never: starts a process, or imports what a record names (`own_code` alone does, for ranks).
"""
