"""The error that ends a simulation with one readable line instead of a traceback. Standard library only."""


class SimulationError(Exception):
    """The message says what was expected, what was found and what to do."""
