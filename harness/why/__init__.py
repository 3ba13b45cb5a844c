"""Why a sweep does not scale: efficiencies, the bill of every loss, and launches that prove its items."""
