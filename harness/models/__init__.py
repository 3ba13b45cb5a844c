"""The papers' networks, and users' own."""
