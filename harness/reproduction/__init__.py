"""Repeat recorded launches from their records alone, and say what came out the same."""
