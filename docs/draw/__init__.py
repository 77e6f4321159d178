"""Draws the pictures of the documents: ``python -m docs.draw``."""
