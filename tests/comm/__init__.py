"""Tests of harness/comm."""
