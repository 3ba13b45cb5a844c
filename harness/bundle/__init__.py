"""One archive with all that a stranger needs to check and repeat sweeps: records, figures, code, words about them."""
