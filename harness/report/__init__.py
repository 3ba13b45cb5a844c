"""Figures and pages from numbers."""
