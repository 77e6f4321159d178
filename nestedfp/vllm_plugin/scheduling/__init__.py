"""In the engine's scheduler: the precision of every step, what it is decided from, and what is counted."""
