"""The engine without HTTP, and the published shapes."""
