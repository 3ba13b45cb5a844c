"""Tests of harness/train."""
