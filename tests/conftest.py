"""What tests of several folders share: which run side by side, how hypothesis runs, and a library that takes seconds to compile."""

import logging
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gemm_library import CSRC, build
from hypothesis import HealthCheck, settings

# What tests assert is no time, and machines are busy.
settings.register_profile("busy_machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy_machine")


@pytest.fixture
def plugin_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.LogCaptureFixture]:
    """What this plugin warns of, whatever vLLM, imported or not, has made of the logs of its name."""
    logger = logging.getLogger("vllm.nestedfp")
    monkeypatch.setattr(logger, "propagate", False)
    caplog.set_level(logging.WARNING, logger.name)
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Replace the scheduler of ``-n``."""
    from service_apart import ServiceApart  # xdist need not be there otherwise

    return ServiceApart(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave a file alone that has no test with a marker that ``-m`` demands: to import what it imports takes seconds."""
    if collection_path.suffix != ".py" or any(sign in config.option.markexpr for sign in ("(", " or ")):
        return None
    demanded = [term for term in config.option.markexpr.split(" and ") if term.isidentifier()]
    text = collection_path.read_text() if demanded else ""
    return any(f"mark.{marker}" not in text for marker in demanded) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of several processes let one begin with the service: it takes the longest."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("serve") is None)


@pytest.fixture(autouse=True)
def no_ray_in_this_process():
    """Fail a test after which Ray runs in pytest's own process.

    Most of Ray's functions start a cluster when there is none, and one that ends later takes the process with it, without a word.
    """
    yield
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
        pytest.fail("the test left a Ray cluster running in pytest's own process")


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
    from nestedfp.kernels import cuda_library

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NESTEDFP_CUDA_LIBRARY", str(compiled_configs))
        cuda_library.library.cache_clear()
        cuda_library.tiles.cache_clear()
        yield
    cuda_library.library.cache_clear()
    cuda_library.tiles.cache_clear()
