"""Numbers from records: pure, DataFrames in and out."""
