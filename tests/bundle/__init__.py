"""Tests of harness/bundle."""
