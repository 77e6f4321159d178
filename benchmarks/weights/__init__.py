"""Random weights for engines."""
