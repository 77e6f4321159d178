"""One simulated engine."""
