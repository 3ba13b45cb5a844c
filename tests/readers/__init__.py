"""Tests of harness/readers."""
