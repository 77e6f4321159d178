"""Whole checkpoints on disk: their weights' statistics, their conversion and its reverse, in chunks of bounded memory."""
