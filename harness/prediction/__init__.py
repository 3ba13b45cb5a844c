"""Predictions from measured bases and measured links, and their check in a simulator."""
