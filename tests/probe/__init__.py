"""Tests of harness/probe."""
