"""Tests of the project as a whole: whole jobs, the documentation, the wheel, the rules of the house."""
