"""Tests of harness/models."""
