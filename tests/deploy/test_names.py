"""Names of vLLM and private ones of Ray that the service uses are there, also those that are imported when they are needed."""

import ast
import warnings
from pathlib import Path

import pytest
import vllm_parts  # vLLM, imported with its warnings kept quiet

from nestedfp.hooks.compare import missing

pytestmark = pytest.mark.slow
assert vllm_parts.MODEL

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
NEWER = "vllm.entrypoints.common.cli_args"  # where a later vLLM has what an earlier one has elsewhere
# What the service overrides, or calls by position: its parameters, in this order.
CALLED = {
    "ray.serve._private.replica:Replica._drain_behind_haproxy": ("self", "min_draining_period_s"),
    "ray.serve._private.replica:Replica._perform_graceful_shutdown": ("self",),
    "ray.serve._private.logging_utils:get_serve_logs_dir": (),
    "vllm.engine.arg_utils:AsyncEngineArgs.create_engine_config": ("self", "usage_context"),
    "vllm.entrypoints.launchers.api_server.app_state:init_app_state": (
        "engine_client",
        "state",
        "args",
        "supported_tasks",
    ),
    "vllm.entrypoints.launchers.app:build_app": ("args", "supported_tasks", "model_config"),
    "vllm.usage.usage_lib:UsageContext.OPENAI_API_SERVER": None,
    "vllm.v1.engine.async_llm:AsyncLLM.from_vllm_config": None,
    "vllm.v1.engine.async_llm:AsyncLLM.reset_mm_cache": ("self",),
    "vllm.v1.engine.async_llm:AsyncLLM.shutdown": ("self",),
    "vllm.v1.engine.core_client:BackgroundResources.engine_manager": None,
    "vllm.v1.engine.output_processor:OutputProcessor.process_outputs": ("self", "engine_core_outputs"),
}


def imported():
    """Every name that the service takes from vLLM or Ray by ``from module import name``."""
    for file in DEPLOY.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("vllm", "ray"):
                yield from (f"{node.module}:{alias.name}" for alias in node.names if node.module != NEWER)


def test_nothing_that_the_service_uses_has_moved():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's imports
        names = set(imported())
        assert len(names) > 40
        assert missing(dict.fromkeys(names) | CALLED) == []
