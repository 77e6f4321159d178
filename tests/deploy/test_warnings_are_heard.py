"""What the service warns of is heard in processes that have imported vLLM's server."""

import subprocess
import sys

SCRIPT = """
import logging
import deploy
from vllm.entrypoints.openai import api_server
logging.getLogger("deploy.agent.agent").warning("heard")
"""


def test_a_warning_is_heard_after_vllm_s_server_was_imported() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert "heard" in done.stderr
