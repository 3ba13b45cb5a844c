"""Tests of harness/analysis."""
