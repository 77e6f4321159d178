"""Which package may import which, and what the pure files may not touch, read from the source without importing it."""

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = ("nestedfp", "controller", "deploy", "loadtest")
IMPURE = {"ray", "vllm", "torch", "time", "random", "asyncio", "datetime", "threading", "secrets", "uuid"}
# The files of the controller that may do I/O; the trace reader parses time stamps, but reads no clock.
DRIVERS = {
    "controller/actor.py",
    "controller/decision_log.py",
    "controller/reach.py",
    "controller/trace.py",
    "controller/simulate/cli.py",
}

MAY_IMPORT = {
    "deploy": {"controller", "nestedfp"},
    "loadtest": {"controller"},
    "controller": {"nestedfp.modes", "nestedfp.step_rule", "nestedfp.step_costs"},
    "nestedfp": set[str](),
}


def files(package: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py"))


def imports(file: str) -> set[str]:
    """Every module that a file imports, wherever in the file, as absolute dotted names."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import; name the package"
            module = node.module or ""
            # "from nestedfp import modes" imports nestedfp.modes.
            found |= {f"{module}.{alias.name}" for alias in node.names} if module in OURS else {module}
    return found


def top(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("package", OURS)
def test_packages_import_along_the_arrows_only(package: str) -> None:
    allowed = MAY_IMPORT[package]
    for file in files(package):
        for module in imports(file):
            if top(module) in OURS and top(module) != package:
                assert any(module == name or module.startswith(f"{name}.") for name in allowed), (
                    f"{file} imports {module}; {package} may import {sorted(allowed) or 'none of ours'}"
                )


@pytest.mark.parametrize("file", [file for file in files("controller") if file not in DRIVERS])
def test_the_deciding_files_are_pure(file: str) -> None:
    touched = {top(module) for module in imports(file)} & IMPURE
    assert not touched, f"{file} imports {sorted(touched)}; take now_s as an argument and leave I/O to the actor"


def test_ray_enters_the_controller_in_one_file() -> None:
    assert {file for file in files("controller") if "ray" in map(top, imports(file))} == {"controller/reach.py"}


def test_vllm_enters_nestedfp_in_the_plugin_only() -> None:
    users = {file for file in files("nestedfp") if "vllm" in map(top, imports(file))}
    assert all(file.startswith("nestedfp/vllm_plugin/") for file in users), users


def test_the_shared_nouns_need_the_standard_library_only() -> None:
    for file in ("nestedfp/modes.py", "nestedfp/step_rule.py"):
        assert {top(module) for module in imports(file)} <= {*sys.stdlib_module_names, "nestedfp"}


def test_importing_the_controller_loads_neither_ray_nor_vllm_nor_torch() -> None:
    script = (
        "import sys, controller.actor; "
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & {'ray', 'vllm', 'torch'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_no_installed_distribution_provides_our_application_packages() -> None:
    provided = importlib.metadata.packages_distributions()
    for package in ("controller", "deploy", "loadtest"):
        assert package not in provided, f"{package} is installed by {provided[package]}; it belongs to the repository"


def test_python_files_stay_small() -> None:
    sizes = {file: len((ROOT / file).read_text().splitlines()) for file in files("controller")}
    assert {file: lines for file, lines in sizes.items() if lines > 300} == {}
