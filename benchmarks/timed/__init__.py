"""An engine whose steps take a given time."""
