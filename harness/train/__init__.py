"""One launch from the inside: load, train, time, evaluate, record."""
