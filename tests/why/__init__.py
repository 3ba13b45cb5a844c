"""Tests of harness/why."""
