"""Is this machine ready? Every part that a run stands on, looked at before the run."""
