"""What tests of several folders share: which run side by side, how hypothesis runs, and a library that takes seconds to compile."""

import shutil

import pytest
from gemm_library import CSRC, build
from hypothesis import HealthCheck, settings

# What tests assert is no time, and machines are busy.
settings.register_profile("busy_machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy_machine")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all tests of the running service to one worker, and begin with them; other files go to whoever is free.

    Most of their time passes in waiting for a start, and two services at once would be too much for two cores.
    """
    for item in items:
        item.add_marker(pytest.mark.xdist_group("service" if _needs_service(item) else str(item.path)))
    items.sort(key=lambda item: not _needs_service(item))


def _needs_service(item: pytest.Item) -> bool:
    return item.get_closest_marker("serve") is not None


@pytest.fixture(scope="session")
def compiled_configs(tmp_path_factory):
    """The choice of GEMM configs, as a library."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    library = tmp_path_factory.mktemp("gemm_config") / "config.so"
    build(CSRC, library, "-O1")
    return library


@pytest.fixture(scope="module")
def host_library(compiled_configs):
    """Has that library in the place of the one that nvcc builds."""
    from benchmarks import gpu_kernels as kernels

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NESTEDFP_CUDA_LIBRARY", str(compiled_configs))
        kernels.library.cache_clear()
        kernels.tiles.cache_clear()
        yield
    kernels.library.cache_clear()
    kernels.tiles.cache_clear()
