"""Repeating what was published."""
