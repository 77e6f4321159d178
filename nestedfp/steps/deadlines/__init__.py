"""Deadlines of requests: what a step may take, and what an engine can still take."""
