"""The cost of a step, fitted to measurements and checked against live runs."""
