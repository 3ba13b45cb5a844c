"""The harness beside its alternatives on the same network, data and cores."""
