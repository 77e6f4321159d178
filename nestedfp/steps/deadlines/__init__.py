"""Deadlines of requests: what a step may take, what an engine can still take, whether it fills up."""
