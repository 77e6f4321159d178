"""The engine without HTTP, and engines whose steps take a given time."""
