"""Tests of harness/transparent."""
