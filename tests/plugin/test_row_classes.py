"""The worker's half of a mixed step: what is put in force, the order of the batch, and who cannot run one."""

import warnings
from types import SimpleNamespace

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # third-party imports, not ours
    from vllm.v1.worker.gpu import model_runner

    from nestedfp.kernels import ops
    from nestedfp.modes import Mode
    from nestedfp.vllm_plugin.ranks import graphs, row_classes

pytestmark = pytest.mark.usefixtures("fp16_again")

TOKENS = {"a": 1, "b": 300, "c": 1, "d": 1, "e": 40}


def worker(attention=None, **changes):
    """As much of a worker as the plugin asks for."""
    found = {"is_multimodal_model": False, "is_encoder_decoder": False, "use_mla": False}
    found |= {"pipeline_parallel_size": 1, "data_parallel_size": 1, "options": {}, **changes}
    config = SimpleNamespace(**found)
    builder = SimpleNamespace(reorder_batch_threshold=attention)
    groups = [[SimpleNamespace(get_metadata_builder=lambda: builder)]]
    vllm_config = SimpleNamespace(
        model_config=config,
        parallel_config=config,
        speculative_config=found.get("speculative"),
        additional_config={"nestedfp": {"mixed_steps": True, **found["options"]}},
    )
    return SimpleNamespace(
        vllm_config=vllm_config,
        model_runner=SimpleNamespace(attn_groups=groups, _model_forward=None),
        nestedfp_nested_experts=found.get("nested_experts", False),
    )


def step(exact, tokens=TOKENS):
    return SimpleNamespace(nestedfp_exact=frozenset(exact), num_scheduled_tokens=tokens)


@pytest.fixture
def on_hopper(monkeypatch):
    monkeypatch.setattr(row_classes.current_platform, "is_cpu", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))


@pytest.fixture(autouse=True)
def pure_again():
    yield
    row_classes.begin_step(Mode.FP16, step(()))


def test_a_gpu_gets_the_exact_rows_first(on_hopper):
    row_classes.begin_step(Mode.FP8, step("ae"))
    assert ops.exact_rows() == 41
    order = graphs._sort_exact_first(TOKENS, {}, 1)
    assert order == ["a", "e", "c", "d", "b"]  # decodes before prompts, in each class
    row_classes.begin_step(Mode.FP8, step(()))
    assert ops.exact_rows() == 0
    assert graphs._sort_exact_first(TOKENS, {}, 1) == model_runner.sort_batch_req_ids(TOKENS, {}, 1)


def test_a_cpu_gets_a_mask_of_rows_when_the_model_runs():
    seen = []
    batch = SimpleNamespace(req_ids=["b", "a", "e", "c", "d"])
    runner = SimpleNamespace(input_batch=batch, _model_forward=lambda: seen.append(ops.exact_rows() != 0))
    row_classes.install_on_cpu(runner)
    row_classes.begin_step(Mode.FP8, step("ae"))
    assert (ops.get_mode(), ops.exact_rows() != 0) == (Mode.FP16, False)
    runner._model_forward()
    row_classes.begin_step(Mode.FP8, step(()))
    runner._model_forward()
    assert seen == [True, False]
    assert ops.get_mode() is Mode.FP8


@pytest.mark.parametrize(("mode", "exact"), [(Mode.FP16, "a"), (Mode.FP8, "abcde"), (Mode.FP8, "az"), (Mode.FP8, "z")])
def test_a_step_that_is_none_is_refused(mode, exact):
    with pytest.raises(RuntimeError, match="a mixed step needs mode fp8 and exact requests that are some of its 5"):
        row_classes.begin_step(mode, step(exact))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"options": {"mixed_steps": False}}, "mixed_steps is off"),
        ({"pipeline_parallel_size": 2}, "pad it"),
        ({"data_parallel_size": 2}, "pad it"),
        ({"is_multimodal_model": True}, "not those of the batch"),
        ({"is_encoder_decoder": True}, "not those of the batch"),
        ({"use_mla": True}, "not those of the batch"),
        ({"speculative": object()}, "drafts share the rows"),
        ({"nested_experts": True}, "not those of the batch"),
        ({"attention": 1}, "decodes before prompts"),
    ],
)
def test_engines_that_cannot_run_mixed_steps_say_why(changes, why, on_hopper):
    assert row_classes.obstacle(worker()) is None
    assert why in row_classes.obstacle(worker(**changes))


def test_a_runner_on_a_cpu_that_takes_no_mask_runs_no_mixed_steps():
    runner = SimpleNamespace()
    row_classes.install_on_cpu(runner)
    assert "no mask of rows" in row_classes.obstacle(SimpleNamespace(**{**vars(worker()), "model_runner": runner}))


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0)])
def test_portable_kernels_run_no_mixed_steps(capability, on_hopper, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert "portable" in row_classes.obstacle(worker())
