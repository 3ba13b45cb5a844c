"""Tests of harness/report."""
