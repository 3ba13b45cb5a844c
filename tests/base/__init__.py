"""Tests of harness/base."""
