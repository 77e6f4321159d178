"""The errors that end a load test with one readable line instead of a traceback. Standard library only."""


class LoadtestError(Exception):
    """Base: the message says what was expected, what was found and what to do."""


class InputError(LoadtestError):
    """What the user gave cannot be used: an argument, a file, or the service's configuration."""


class ServiceError(LoadtestError):
    """The service did not start, went away, or answered something that the load test does not understand."""
