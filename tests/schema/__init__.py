"""Tests of harness/schema."""
