"""Tests of wording: here, and nowhere else, tests say what sentences are."""
