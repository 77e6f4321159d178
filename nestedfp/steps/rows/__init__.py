"""Steps of exact and fast rows."""
