"""A running service that has everything an operator can add: keys, an access log, traces, parsers and a chat template of vLLM's.

The tests of ``deploy/one_service`` share it. None of them stops it or leaves it otherwise than it was.
"""

import contextlib
import hashlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from live_service import demo_config, serve

PORT = 8128
URL = f"http://127.0.0.1:{PORT}"
PAGE = "https://page.example"  # a web page that may ask
SECRETS = {
    "user": "user-7f3a1c9e0b5d",
    "pin": "pin-5b2e8d7c1f90",
    "admin": "admin-90ab12cd34ef",
    "few": "few-1122334455",
}
FIELDS: dict[str, dict[str, Any]] = {
    "user": {},
    "pin": {"role": "pin"},
    "admin": {"role": "admin"},
    "few": {"requests_per_minute": 4},  # two at each replica
}
TEMPLATE = "{% for message in messages %}{{ message['content'] | upper }}{% endfor %}"
EXTRA = {
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    "reasoning_parser": "granite",
    # Without it this model fills its answer with blanks, which JSON allows.
    "structured_outputs_config": {"backend": "xgrammar", "enable_in_reasoning": True, "disable_any_whitespace": True},
}


@dataclass(frozen=True)
class KeyedService:
    """The service and where its files lie."""

    process: "subprocess.Popen[bytes]"  # the start-up command
    folder: Path

    @property
    def log(self) -> Path:
        """What the start-up command has said."""
        return self.folder / "log"

    @property
    def keys(self) -> Path:
        return self.folder / "keys.yaml"

    @property
    def access_logs(self) -> list[Path]:
        """A file of each replica that has answered."""
        return sorted((self.folder / "access").glob("access_*.log"))


@contextlib.contextmanager
def started(folder: Path, otlp_endpoint: str) -> Iterator[KeyedService]:
    """Start it with two replicas; its traces go to the endpoint."""
    entries = [
        {"name": name, "sha256": hashlib.sha256(secret.encode()).hexdigest(), **FIELDS[name]}
        for name, secret in SECRETS.items()
    ]
    (folder / "keys.yaml").write_text(yaml.safe_dump({"keys": entries}))
    (folder / "template.jinja").write_text(TEMPLATE)
    config = demo_config()
    config["engine"] |= {"extra": {**EXTRA, "chat_template": str(folder / "template.jinja")}}
    # What no client asks for is not sampled: every span has been asked for.
    config["tracing"] = {"otlp_endpoint": otlp_endpoint, "sample_share": 0}
    http = {
        "keys_file": str(folder / "keys.yaml"),
        "cors_origins": [PAGE],
        "access_log": "json",
        "access_log_folder": str(folder / "access"),
    }
    with serve(folder, config, PORT, http=http) as process:
        yield KeyedService(process, folder)


def client_of(name: str | None) -> httpx.Client:
    """A client with the key of this name; None: without one."""
    headers = {} if name is None else {"Authorization": f"Bearer {SECRETS[name]}"}
    return httpx.Client(base_url=URL, timeout=120, trust_env=False, headers=headers)
