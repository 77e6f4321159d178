"""OpenAI's ``type`` of an error, by its HTTP status: the one place that says it. Pure."""

INVALID, SERVER = "invalid_request_error", "server_error"
OF_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    425: "rate_limit_error",  # one replica's word; a client that hears it from all of them gets it as 429
    429: "rate_limit_error",
}
ALL = sorted({INVALID, SERVER, *OF_STATUS.values()})


def error_type(status: int) -> str:
    """Return the type of the error that a response of this status carries."""
    return OF_STATUS.get(status, INVALID if status < 500 else SERVER)
