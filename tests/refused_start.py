"""The start-up command with a configuration that it must refuse, run to its end."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from processes import ROOT

from deploy import serve
from deploy.environment import free_ports


def start(
    folder: Path, change: Callable[[dict[str, Any]], None], *options: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run ``python -m deploy.serve`` with the shipped configuration, on a free port and as ``change`` changes it.

    Args:
        folder: where the configuration is written.
        options: further ones of the command line.
        environment: set beside this process's own.
    """
    return subprocess.run(
        [sys.executable, "-m", "deploy.serve", "--config", str(written(folder, change)), *options],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )


def written(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The file of that configuration."""
    data = yaml.safe_load(serve.DEFAULT_CONFIG.read_text())
    data.setdefault("http", {})["port"] = free_ports(1)[0]
    change(data)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(data))
    return path
