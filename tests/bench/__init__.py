"""Tests of harness/bench."""
