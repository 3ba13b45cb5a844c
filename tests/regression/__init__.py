"""Tests of harness/regression."""
