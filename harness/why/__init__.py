"""Why a sweep does not scale: efficiencies, overheads by cause, and known causes."""
