"""What tests of a replica's front share."""

import multiprocessing
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def warm_grammars():
    """Has processes that try grammars forked from one that has imported what they need: an import takes longer than a test."""
    from deploy.front.checks import grammars

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            *(
                "pytest",
                "transformers",
                "xgrammar",
                "vllm.sampling_params",
                "vllm.tokenizers",
                "vllm.v1.structured_output.request",
            ),
            *("vllm.v1.structured_output", "vllm.v1.structured_output.backend_xgrammar", grammars.__name__),
        ]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammars, "multiprocessing", SimpleNamespace(get_context=lambda _: context))
        yield
