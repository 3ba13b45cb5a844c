"""Tests of harness/datasets."""
