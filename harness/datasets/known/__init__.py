"""The data sets that the harness knows, a module each: whatever stands here and has a DATASET is found."""
