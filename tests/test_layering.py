"""Which package may import which, and what the pure files may not touch, read from the source without importing it.

The top level; an arrow points at what is imported:

    nestedfp <---------- controller ----------> workload
     ^   ^                ^   ^   ^               ^   ^
     |   +--- simulator --+   |   +--- loadtest --+   |
     |            |           |                       |
     |            +-----------|-----------------------+
     +------- deploy ---------+

``experiments`` stands above all of them and ``benchmarks``: nothing imports it.

``loadtest`` takes no more of ``controller`` than its configuration; ``controller`` and ``simulator`` no more of
``nestedfp`` than modes, the rules for a step and measured costs; ``simulator`` no more of ``deploy`` than the pure rules by
which a replica takes a request, sends it on or refuses it.
"""

import ast
import importlib.metadata
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = {"nestedfp.modes", "nestedfp.steps"}
MAY_IMPORT = {
    "nestedfp": set[str](),
    "workload": {"nestedfp.answers"},
    "controller": {"workload", *SHARED},
    "simulator": {
        "controller",
        "deploy.access.admission",
        "deploy.front.checks.asked",
        "deploy.access.peers",
        "deploy.haproxy.haproxy_config",
        "deploy.haproxy.route_rule",
        "nestedfp.vllm_plugin.scheduling.accounting",
        "workload",
        *SHARED,
    },
    "loadtest": {"controller.config", "nestedfp.answers", "workload"},
    "deploy": {"controller", "nestedfp", "workload"},
    "experiments": {
        "controller.config",
        "deploy.config",
        "loadtest",
        "simulator",
        "nestedfp.offline.roofline",
        "nestedfp.vllm_plugin.options",
        "workload",
    },  # and benchmarks
}
# From the ground up: a floor imports the floors below it, and its own.
FLOORS = {
    "controller": (
        ("messages", "audit", "sliding_window", "watched_file"),
        ("fleet", "protocol"),
        ("policies",),
        ("config",),
        ("decide",),
        ("live",),
    ),
}

# Folders that import each other, file by file without a circle. The list is to become shorter.
TIED_BOTH_WAYS = {
    ("deploy/access", "deploy/front"),  # a key's refusal is an HTTP answer
    ("deploy/agent", "deploy/replica"),  # what an engine is called that hangs
    ("deploy/front", "deploy/replica"),  # spans, what is given up
    ("nestedfp/vllm_plugin/ranks", "nestedfp/vllm_plugin/weights"),  # the self check, where a layer has been loaded
}

IMPURE = {"ray", "vllm", "torch", "time", "random", "asyncio", "datetime", "threading", "secrets", "uuid"}
FILE_MODULES = {"os", "io", "shutil", "tempfile", "subprocess", "socket", "pathlib", "glob", "logging", "yaml"}
FILE_CALLS = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "unlink"}
# Each policy keeps a State; deploy's ControllerActor is the controller's, with what a live service adds.
SHARED_NAMES = {"State", "ControllerActor"}
# Files that may do I/O. The trace reader parses time stamps, but reads no clock.
DRIVERS = (
    "controller/live/",
    "simulator/run.py",
    "simulator/engine/cost_table.py",
    "simulator/fit/",
    "workload/traces.py",
    "workload/records.py",
    "workload/strict_yaml.py",
    "controller/watched_file.py",
)


def files(package: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py"))


ALL_FILES = [file for package in MAY_IMPORT for file in files(package)]
MODULES = {file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file for file in ALL_FILES}
PURE = [
    file
    for package in ("workload", "controller", "simulator")
    for file in files(package)
    if not file.startswith(DRIVERS)
]


def imports(file: str, *, late: bool = True) -> set[str]:
    """The modules that a file imports, as absolute dotted names; without ``late`` those at its top level only."""
    found = set()
    tree = ast.parse((ROOT / file).read_text())
    for node in ast.walk(tree) if late else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import; name the package"
            module = node.module or ""
            # "from nestedfp import modes" imports nestedfp.modes.
            inner = {f"{module}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= inner | ({module} if len(inner) < len(node.names) else set())
    return found


def top(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_along_the_arrows_only(package: str) -> None:
    allowed = MAY_IMPORT[package]
    for file in files(package):
        for module in imports(file):
            if top(module) in MAY_IMPORT and top(module) != package:
                assert any(module == name or module.startswith(f"{name}.") for name in allowed), (
                    f"{file} imports {module}; {package} may import {sorted(allowed) or 'none of ours'}"
                )


@pytest.mark.parametrize("package", FLOORS)
def test_a_floor_imports_no_floor_above_it(package: str) -> None:
    floor_of = {room: floor for floor, rooms in enumerate(FLOORS[package]) for room in rooms}
    for name, file in MODULES.items():
        room = name.split(".")[1:2]
        if top(name) != package or not room:
            continue
        for module in imports(file):
            if top(module) == package and (other := module.split(".")[1:2]):
                assert floor_of[other[0]] <= floor_of[room[0]], f"{file} imports {module} of a floor above"


def test_no_file_imports_itself_through_others() -> None:
    # Importing a package's module runs its __init__ first, but that is allowed to gather names from its own modules.
    graph = {name: imports(file, late=False) & MODULES.keys() - {name} for name, file in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError with the circle


def test_no_two_folders_import_each_other() -> None:
    arrows = {
        (str(Path(file).parent), str(Path(MODULES[module]).parent))
        for file in ALL_FILES
        for module in imports(file) & MODULES.keys()
    }
    tied = {(a, b) for a, b in arrows if a < b and (b, a) in arrows and Path(a) not in Path(b).parents}
    assert tied == TIED_BOTH_WAYS


@pytest.mark.parametrize(
    "package",
    ["nestedfp", "controller", "simulator", "workload", "loadtest", "deploy", "experiments", "benchmarks"],
)
def test_no_folder_holds_more_than_ten_files(package: str) -> None:
    folders = {path.parent for path in (ROOT / package).rglob("*.py")}
    crowded = {str(f.relative_to(ROOT)): count for f in folders if (count := len(list(f.glob("*.py")))) > 10}
    assert not crowded


def test_no_public_class_has_the_name_of_another_one() -> None:
    places: dict[str, list[str]] = {}
    for file in (*ALL_FILES, *files("benchmarks")):
        for node in ast.parse((ROOT / file).read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(file)
    twice = {name: found for name, found in places.items() if len(found) > 1 and name not in SHARED_NAMES}
    assert not twice, "one of each pair had better say what sets it apart"


@pytest.mark.parametrize("file", PURE)
def test_the_deciding_files_read_no_clock_and_no_file(file: str) -> None:
    touched = {top(module) for module in imports(file)} & (IMPURE | FILE_MODULES)
    assert not touched, f"{file} imports {sorted(touched)}; take values as arguments and leave I/O to the drivers"
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            assert called not in FILE_CALLS, f"{file}:{node.lineno} calls {called}; leave files to the drivers"


def test_the_controller_knows_nothing_of_ray() -> None:
    assert not {file for file in files("controller") if "ray" in map(top, imports(file))}


def test_vllm_enters_nestedfp_in_the_plugin_only() -> None:
    users = {file for file in files("nestedfp") if "vllm" in map(top, imports(file))}
    assert all(file.startswith("nestedfp/vllm_plugin/") for file in users), users


def test_the_shared_nouns_need_the_standard_library_only() -> None:
    for file in (MODULES[name] for name in SHARED):
        assert {top(module) for module in imports(file)} <= {*sys.stdlib_module_names, "nestedfp"}


def test_importing_the_controller_loads_neither_ray_nor_vllm_nor_torch() -> None:
    script = (
        "import sys, controller.live.actor; "
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & {'ray', 'vllm', 'torch'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_no_installed_distribution_provides_our_application_packages() -> None:
    provided = importlib.metadata.packages_distributions()
    for package in ("workload", "controller", "simulator", "deploy", "loadtest"):
        assert package not in provided, f"{package} is installed by {provided[package]}; it belongs to the repository"
