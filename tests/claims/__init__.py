"""Tests of harness/claims."""
