"""Linear layers on a CPU, and random weights for engines."""
