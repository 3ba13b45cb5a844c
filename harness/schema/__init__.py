"""The vocabulary as frozen dataclasses: pure, without input or output, imported by every floor above."""
