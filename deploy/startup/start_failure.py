"""Why a start failed, in one sentence: Ray Serve says only that it "failed to update the deployments"."""

import re


def heart(message: str) -> str | None:
    """Return the sentence that matters out of what Serve says of a deployment whose replicas do not start; None: there is none.

    Serve's message holds the replica's traceback, and that of its cause, as text. Pure.
    """
    ours = re.findall(r"the engine did not start: (.+)", message)
    if ours and "validation error" not in ours[-1]:
        return str(ours[-1]).strip()
    errors = re.findall(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception): .+)", message, re.MULTILINE)
    if not errors:
        return None
    last = errors[-1].strip()
    if re.search(r"validation errors? for \w+$", last):  # pydantic says on the next line which
        reasons = re.findall(r"Value error, (.+?)(?: \[type=|$)", message.rpartition(last)[2], re.MULTILINE)
        return str(reasons[0]) if reasons else last
    return last


def cause(error: Exception) -> str:
    """Return the cause of a failed start: what a deployment's replicas said, or else the exception's own text."""
    import ray
    from ray import serve

    if not ray.is_initialized():  # to ask Serve would start a cluster
        return str(error)
    try:
        applications = serve.status().applications.values()
        messages = [each.message for application in applications for each in application.deployments.values()]
    except Exception:  # Serve is not up
        messages = []
    found = [sentence for message in messages if (sentence := heart(message)) is not None]
    return found[0] if found else str(error)
