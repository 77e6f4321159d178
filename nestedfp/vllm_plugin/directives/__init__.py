"""Directives on their way into the scheduler: through the core, and by a line of their own."""
