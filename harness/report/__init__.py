"""Figures and pages from numbers.

In: estimates, findings and verdicts.
Out: one `Answer`: for the terminal, JSON, a page, Markdown and CSV.
Never: measures, or decides by a sentence; facts are typed, and worded here last.
"""
