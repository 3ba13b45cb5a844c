"""What the child processes of a rank have of the harness: nothing but a mark that one of them trains."""
