"""Tests of harness/doctor."""
