"""Tests of harness/horovod."""
