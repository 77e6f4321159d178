"""Names of vLLM and private ones of Ray that the service uses stand in one list, and are there."""

import ast
import warnings
from pathlib import Path

import pytest
import vllm_parts  # vLLM, imported with its warnings kept quiet

from deploy.names import NAMES
from nestedfp.hooks.compare import missing

pytestmark = pytest.mark.slow
assert vllm_parts.MODEL

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
LISTED = {
    f"{module}:{path.partition('.')[0]}"
    for modules, _, path in (name.partition(":") for name in NAMES)
    for module in modules.split("|")
}


def is_private(module, name):
    return module.split(".")[0] == "vllm" or any(part.startswith("_") for part in [*module.split("."), name])


def imported():
    """Every (file, module, name) that the service takes from vLLM or Ray by ``from module import name``."""
    for file in DEPLOY.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("vllm", "ray"):
                yield from ((file.name, node.module, alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    assert alias.name.split(".")[0] != "vllm", f"{file.name}: import names from vLLM, not modules"
                    assert "._" not in alias.name, f"{file.name}: import names from {alias.name}, not the module"


def test_every_private_name_that_the_service_imports_stands_in_the_list():
    unlisted = {f"{module}:{name}" for _, module, name in imported() if is_private(module, name)} - LISTED
    assert not unlisted, f"add to deploy/names.py: {sorted(unlisted)}"


def test_nothing_in_the_list_has_moved():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's imports
        assert missing(NAMES) == []
