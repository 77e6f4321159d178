"""The first requests: they load what the service loads lazily, so that no user pays for it."""

import httpx


def warm_up(url: str, model: str, timeout_s: float = 120.0) -> None:
    """Send one completion and one chat.

    Raises:
        RuntimeError: when the service answers with an error.
    """
    with httpx.Client(base_url=url, timeout=timeout_s, trust_env=False) as client:
        for route, body in (
            ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 4}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}),
        ):
            response = client.post(route, json={"model": model, **body})
            if response.is_error:
                raise RuntimeError(f"{route} answered {response.status_code}: {response.text[:500]}")
