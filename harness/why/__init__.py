"""Why a sweep does not scale: efficiencies, overheads by cause, known causes, and the proof by launches."""
