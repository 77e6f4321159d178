"""A running service that has everything an operator can add: keys, an access log, traces, parsers and a chat template of vLLM's.

The tests of ``deploy/one_service`` share it. None of them leaves it otherwise than it was, and it ends in order after the last.
"""

import contextlib
import hashlib
import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import adapters
import httpx
import psutil
import yaml
from live_service import ADMIN, demo_config, serve, whole_lines

PORT = 8128
URL = f"http://127.0.0.1:{PORT}"
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
    "enable_lora": True,
    "max_lora_rank": 8,
    # Without it this model fills its answer with blanks, which JSON allows.
    "structured_outputs_config": {"backend": "xgrammar", "enable_in_reasoning": True, "disable_any_whitespace": True},
}
# The controller may ask for a third replica, which takes another configuration of it. Two sequences a replica make a queue soon.
LADDER = {"scale": True, "min_replicas": 2, "max_replicas": 3, "scale_after_s": 86400}


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
    def config(self) -> Path:
        return self.folder / "config.yaml"

    @contextlib.contextmanager
    def controlled(self, **section: Any) -> Iterator[None]:
        """Have another ``controller`` section in force meanwhile."""
        before = self.config.read_text()
        try:
            self.config.write_text(yaml.safe_dump({**yaml.safe_load(before), "controller": section}))
            reload()
            yield
        finally:
            self.config.write_text(before)
            reload()

    @property
    def access_logs(self) -> list[Path]:
        """A file of each replica that has answered."""
        return sorted((self.folder / "access").glob("access_*.log"))

    @property
    def access_lines(self) -> dict[str, dict[str, Any]]:
        """What they hold of each request, by its id."""
        found = [json.loads(line) for path in self.access_logs for line in whole_lines(path.read_text())]
        return {line["id"]: line for line in found}


@contextlib.contextmanager
def started(folder: Path) -> Iterator[KeyedService]:
    """Start it with two replicas."""
    entries = [
        {"name": name, "sha256": hashlib.sha256(secret.encode()).hexdigest(), **FIELDS[name]}
        for name, secret in SECRETS.items()
    ]
    (folder / "keys.yaml").write_text(yaml.safe_dump({"keys": entries}))
    (folder / "template.jinja").write_text(TEMPLATE)
    config = demo_config()
    modules = [{"name": "storm", "path": adapters.save(folder / "storm")}]
    extra = {**EXTRA, "chat_template": str(folder / "template.jinja"), "lora_modules": modules}
    config["engine"] |= {"extra": extra, "max_num_seqs": 2, "cpu_threads": 1}
    config["controller"]["ladder"] = LADDER
    config["decision_log"] = str(folder / "decisions.jsonl")
    http = {
        "keys_file": str(folder / "keys.yaml"),
        "access_log_folder": str(folder / "access"),
    }
    with serve(folder, config, PORT, http=http) as process:
        yield KeyedService(process, folder)
        stop(process)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End it as an operator does; it leaves no process."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    assert process.wait(180) == 0
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive, f"left running: {alive}"


def reload() -> dict[str, Any]:
    """Have the controller take the file up again; what it says then."""
    response = httpx.post(f"{URL}/admin/reload", headers=ADMIN, timeout=60, trust_env=False)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def client_of(name: str | None) -> httpx.Client:
    """A client with the key of this name; None: without one."""
    headers = {} if name is None else {"Authorization": f"Bearer {SECRETS[name]}"}
    return httpx.Client(base_url=URL, timeout=120, trust_env=False, headers=headers)
