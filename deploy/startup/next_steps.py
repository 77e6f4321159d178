"""What the start-up command prints when the service is ready: what to try next. Pure."""

import json
import shlex

from deploy.access.keys import path_of
from deploy.config import DeployConfig


def next_steps(config: DeployConfig, url: str, key: str) -> str:
    """Return the lines: a request, the pages, the admin key.

    Args:
        config: of the service.
        url: where it listens.
        key: where the admin key is, in words.
    """
    body = json.dumps({"model": config.model.id, "prompt": "Once upon a time", "max_tokens": 40})
    bearer = "" if path_of(config.http.keys_file) is None else " -H 'Authorization: Bearer YOUR_KEY'"
    return "\n".join(
        [
            "try next:",
            f"  curl {url}/v1/completions{bearer} -H 'Content-Type: application/json' -d {shlex.quote(body)}",
            *([f"  control room  {url}/control"] if config.engine.quantization == "nestedfp" else []),
            f"  metrics       {url}/metrics",
            f"  admin key     {key}",
        ]
    )
