"""The plugin and the versions around it: what was tested is named, what has moved is found, plain vLLM is never taken down."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import vllm_parts  # vLLM, imported with its warnings kept quiet

from nestedfp.hooks import compare, versions
from nestedfp.hooks.__main__ import main
from nestedfp.hooks.table import HOOKS, PUBLIC
from nestedfp.vllm_plugin import wiring

pytestmark = pytest.mark.slow

PLUGIN = Path(__file__).resolve().parents[2] / "nestedfp" / "vllm_plugin"
NAMES = [name for hooks in HOOKS for name in hooks.names]
assert vllm_parts.MODEL


def imported():
    """Every (file, name) that the plugin imports from vLLM."""
    for file in PLUGIN.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm":
                yield from ((file.name, f"{node.module}:{alias.name}") for alias in node.names)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    assert alias.name.partition(".")[0] != "vllm", f"{file.name}: import names from vLLM, not modules"


def test_every_name_of_vllm_that_is_used_stands_in_the_table():
    listed = {
        f"{module}:{re.split('[.#]', path)[0]}"
        for modules, _, path in (name.partition(":") for name in NAMES)
        for module in modules.split("|")
    }
    modules = {name.partition(":")[0] for name in listed}
    found = [
        f"{file}: {name}"
        for file, name in imported()
        if name not in listed and name.replace(":", ".") not in modules  # a module of which names are listed
    ]
    assert not found, f"add to nestedfp/hooks/table.py: {found}"


def test_every_method_that_the_scheduler_overrides_stands_in_the_table():
    from nestedfp.vllm_plugin.scheduling.scheduler import PrecisionMixin

    ours = {
        name
        for part in PrecisionMixin.__mro__[:-1]
        for name in vars(part)
        if hasattr(vllm_parts.Scheduler, name) and not name.startswith("__")
    }
    listed = {each for name in NAMES if "scheduler:Scheduler." in name for each in name.rpartition(".")[2].split("|")}
    assert ours <= listed


def test_nothing_in_the_table_has_moved():
    assert compare.differences() == []


def test_public_names_stand_in_the_table():
    assert set(NAMES) >= PUBLIC


def test_what_has_moved_is_said():
    moved = {
        "vllm.v1.request:Request.no_such_method": None,
        "vllm.no_such_module:Thing": None,
        "vllm.v1.request:Request.update_block_hashes": ("self", "other"),
        "vllm.v1.request:Request.no_such_method|update_block_hashes": ("self",),
        "vllm.v1.request:Request#cache_salt": None,
        "vllm.v1.request:Request#no_such_attribute|nor_this": None,
    }
    assert compare.missing(moved) == [
        "vllm.v1.request:Request.no_such_method is not there",
        "vllm.no_such_module:Thing is not there",
        "vllm.v1.request:Request.update_block_hashes takes ['self'], expected ['self', 'other']",
        "vllm.v1.request:Request#no_such_attribute|nor_this is not there: instances have no such attribute",
    ]


def test_a_vllm_that_does_not_load_is_one_difference(monkeypatch):
    monkeypatch.setitem(sys.modules, compare.CORE, None)
    (said,) = compare.differences()
    assert said.startswith("vLLM does not load here (ModuleNotFoundError: import of vllm.config halted")


def test_the_installed_versions_were_tested():
    assert versions.untested(versions.TESTED) is None


def test_another_version_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(versions, "installed", lambda package: {"vllm": "0.33.1", "torch": "2.13.0"}[package])
    with pytest.raises(
        ValueError,
        match=r"not tested with vllm 0\.33\.1 \(tested: 0\.29\.0, .*\); install .*NESTEDFP_ALLOW_UNTESTED=1",
    ):
        wiring.check_versions()


@pytest.mark.parametrize("allowed", ["0", "1"])
def test_another_version_may_be_allowed_unless_something_differs_which_is_said(monkeypatch, allowed):
    monkeypatch.setattr(versions, "installed", lambda package: "9.9.9")
    monkeypatch.setenv(versions.ALLOW_ENV, allowed)
    if allowed == "1":
        wiring.check_versions()
    monkeypatch.setattr(compare, "differences", lambda: ["vllm.x:Y is not there"])
    with pytest.raises(ValueError, match=r"1 of its hooks differ: vllm\.x:Y is not there; install a tested version"):
        wiring.check_versions()


def test_the_command_prints_the_table_and_what_differs(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["hooks"])
    assert main() == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in NAMES)
    assert "nothing differs" in printed
    monkeypatch.setattr(compare, "differences", lambda: ["vllm.x:Y is not there"])
    assert main() == 1
    assert capsys.readouterr().out.endswith("1 differs\n    vllm.x:Y is not there\n")


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
