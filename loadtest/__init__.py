"""Replay production arrivals against a running service and report what each precision policy did to latency.

``python -m loadtest --help`` has the command line; docs/loadtest.md explains how to read the report. Importing this
package loads nothing heavy: Locust and gevent live in one subprocess (``loadtest.sender.worker``), matplotlib is imported when
the plots are drawn.
"""

from pathlib import Path

REPO_ROOT = Path(__file__).resolve().parents[1]  # where the processes that it starts find our packages
