"""Tests of harness/prediction."""
