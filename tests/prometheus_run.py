"""A real Prometheus beside the tests: scrapes one address, holds our alert rules, answers queries."""

import contextlib
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml
from live_service import wait_until
from processes import ROOT

MONITORING = ROOT / "k8s" / "monitoring"
MISSING = "no Prometheus on the PATH (Debian: apt install prometheus)"
INTERVAL = "60s"  # in place of Grafana's $__rate_interval: several scrapes of the tests'


def installed() -> bool:
    """Whether there is a Prometheus to run."""
    return shutil.which("prometheus") is not None and shutil.which("promtool") is not None


def rule_groups() -> dict[str, Any]:
    """The alert rules as Prometheus' own rule file."""
    return {"groups": yaml.safe_load((MONITORING / "alerts.yaml").read_text())["spec"]["groups"]}


def alerts() -> dict[str, str]:
    """Every alert's expression by its name."""
    return {rule["alert"]: rule["expr"] for group in rule_groups()["groups"] for rule in group["rules"]}


def dashboard_queries() -> dict[str, str]:
    """Every query of the dashboard by its panel and legend, with Grafana's variables filled in."""
    board = json.loads((MONITORING / "dashboard.json").read_text())
    queries = {}
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", INTERVAL)
            queries[f"{panel['title']}: {target['legendFormat']}"] = re.sub(r"\$\w+", ".*", expression)
    return queries


def names(expression: str) -> set[str]:
    """The names of our and of vLLM's series in an expression."""
    return set(re.findall(r"\b(?:nestedfp_|vllm:)\w+", expression))


class Prometheus:
    """A running server."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=30, trust_env=False)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query; it must be valid."""
        response = self._client.get("/api/v1/query", params={"query": expression})
        assert response.status_code == 200, f"{expression}: {response.text}"
        result: list[dict[str, Any]] = response.json()["data"]["result"]
        return result

    def get(self, path: str) -> Any:
        """The data of another route of its API."""
        response = self._client.get(f"/api/v1/{path}")
        assert response.status_code == 200, response.text
        return response.json()["data"]

    def close(self) -> None:
        self._client.close()


@contextlib.contextmanager
def scraping(folder: Path, target: str) -> Iterator[Prometheus]:
    """Scrape ``target`` (host:port) every second, with our alert rules."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(rule_groups()))
    config = {
        # A scrape may take as long as its interval: on two busy cores a page takes seconds.
        "global": {"scrape_interval": "5s", "scrape_timeout": "5s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [{"job_name": "nestedfp", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *("prometheus", f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"),
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    server = Prometheus(f"http://127.0.0.1:{port}")
    try:

        def ready() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"http://127.0.0.1:{port}/-/ready", trust_env=False).status_code == 200
            return False

        assert wait_until(ready, 30), (folder / "prometheus.log").read_text()[-2000:]
        yield server
    finally:
        server.close()
        process.terminate()
        process.wait(30)
