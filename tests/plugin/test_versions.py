"""The plugin and the versions around it: what was tested is named, what has moved is found, plain vLLM is never taken down."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import vllm_parts  # vLLM, imported with its warnings kept quiet

from nestedfp.vllm_plugin import names, versions, wiring

pytestmark = pytest.mark.slow

PLUGIN = Path(__file__).resolve().parents[2] / "nestedfp" / "vllm_plugin"
assert vllm_parts.MODEL


def imported():
    """Every (module, name) that the plugin imports from vLLM."""
    for file in PLUGIN.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm":
                yield from ((file.name, f"{node.module}:{alias.name}") for alias in node.names)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    assert alias.name.partition(".")[0] != "vllm", f"{file.name}: import names from vLLM, not modules"


def test_every_name_of_vllm_that_is_used_stands_in_the_list():
    listed = {f"{module}:{path.partition('.')[0]}" for module, _, path in (n.partition(":") for n in names.NAMES)}
    missing = [f"{file}: {name}" for file, name in imported() if name not in listed]
    assert not missing, f"add to nestedfp/vllm_plugin/names.py: {missing}"


def test_every_method_that_the_scheduler_overrides_stands_in_the_list():
    from nestedfp.vllm_plugin.scheduling.scheduler import PrecisionMixin

    ours = {name for name in vars(PrecisionMixin) if hasattr(vllm_parts.Scheduler, name) and not name.startswith("__")}
    listed = {name.rpartition(".")[2] for name in names.NAMES if "scheduler:Scheduler" in name}
    assert ours <= listed


def test_nothing_in_the_list_has_moved():
    assert names.missing() == []


def test_what_has_moved_is_said():
    moved = {
        "vllm.v1.request:Request.no_such_method": None,
        "vllm.no_such_module:Thing": None,
        "vllm.v1.request:Request.update_block_hashes": ("self", "other"),
    }
    assert names.missing(moved) == [
        "vllm.v1.request:Request.no_such_method is not there",
        "vllm.no_such_module:Thing is not there",
        "vllm.v1.request:Request.update_block_hashes takes ['self'], expected ['self', 'other']",
    ]


def test_the_installed_versions_were_tested():
    assert versions.untested(("vllm", "torch", "ray")) is None


def test_another_version_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(versions, "installed", lambda package: {"vllm": "0.30.1", "torch": "2.13.0"}[package])
    with pytest.raises(
        ValueError, match=r"not tested with vllm 0\.30\.1 \(tested: 0\.29\.0\); .*NESTEDFP_ALLOW_UNTESTED=1"
    ):
        wiring.check_versions()


def test_another_version_may_be_allowed_unless_something_has_moved(monkeypatch):
    monkeypatch.setattr(versions, "installed", lambda package: "9.9.9")
    monkeypatch.setenv(versions.ALLOW_ENV, "1")
    wiring.check_versions()
    monkeypatch.setattr(names, "missing", lambda: ["vllm.x:Y is not there"])
    with pytest.raises(ValueError, match=r"vllm\.x:Y is not there; install a tested version"):
        wiring.check_versions()


def python(script):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_registering_loads_no_layers_and_no_kernels():
    script = (
        "import sys, vllm.engine.arg_utils\n"
        "before = set(sys.modules)\n"
        "from nestedfp.vllm_plugin import register\n"
        "register()\n"
        "new = set(sys.modules) - before\n"
        "plugin = 'nestedfp.vllm_plugin.'\n"
        "heavy = ('nestedfp.kernels.ops', plugin + 'weights.layers', plugin + 'ranks.worker', 'vllm.v1.worker')\n"
        "print(sorted(name for name in new if name.startswith(heavy) or 'fused_moe' in name))\n"
    )
    assert python(script) == "[]"


def test_a_plugin_that_cannot_load_leaves_plain_vllm_alone():
    script = (
        "import sys\n"
        "sys.modules['nestedfp.vllm_plugin.wiring'] = None\n"
        "from nestedfp.vllm_plugin import register\n"
        "register()\n"
        "print('goes on')\n"
    )
    assert python(script) == "goes on"
