"""What communication costs on this machine: measured, fitted, compared, written down."""
