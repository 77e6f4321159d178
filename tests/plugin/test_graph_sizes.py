"""Which token counts get a CUDA graph above vLLM's own sizes. No GPU.

Run: ``pytest -q tests/plugin/test_graph_sizes.py``
"""

import warnings
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from nestedfp.modes import Mode
from nestedfp.vllm_plugin.ranks.graph_sizes import host_bound_tokens, larger_sizes, mixed_sizes

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.config.compilation import CUDAGraphMode
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.v1.attention.backend import AttentionCGSupport
    from vllm.v1.worker.gpu import cudagraph_utils

    from nestedfp.kernels import ops
    from nestedfp.vllm_plugin.ranks.graphs import EXACT_ROW, FAST, DualPrecisionGraphManager, in_capture_order, mode_of

pytestmark = pytest.mark.filterwarnings("ignore")  # of what vLLM imports later

SIZES = [1, 2, 4, 8, 256, 512]  # vLLM's own
KEYS = (0, FAST)  # of the graphs of each precision


def test_sizes_lie_above_vllm_s_and_end_at_the_limit():
    sizes = larger_sizes(512, 2048)
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 544
    assert sizes[-1] == 2048
    assert larger_sizes(512, 512) == []
    assert larger_sizes(512, 0) == []
    assert larger_sizes(1024, 1100) == [1100]


def test_the_host_is_the_limit_further_on_in_fp8_mode_and_with_small_models():
    def limits(billions, layers, multiprocessors=132):
        size = int(billions * 1e9), layers
        return [host_bound_tokens(*size, mode, multiprocessors) for mode in (Mode.FP16, Mode.FP8)]

    small, large = limits(7, 32), limits(23, 40)
    # Steps of the 24B shape in FP16 mode take the GPU 45 ms from 550 tokens on, and the host 50 at most.
    assert 500 < large[0] < 700
    assert large[1] == pytest.approx(1.5 * large[0], rel=0.01)
    assert small[0] > 1500
    assert small[1] > 2048
    assert limits(7, 32, 66)[0] == pytest.approx(small[0] / 2, rel=0.01)


def attention_layers(*supports):
    """Layers whose attention can be captured as said."""

    def layer(support):
        builder = type(support, (), {"get_cudagraph_support": lambda config, spec: AttentionCGSupport[support]})
        members = {
            "get_attn_backend": lambda self: SimpleNamespace(get_builder_cls=lambda: builder),
            "get_kv_cache_spec": lambda self, config: "a spec",
        }
        return type("Layer", (AttentionLayerBase,), members)()

    return {"no attention": object(), **{str(n): layer(support) for n, support in enumerate(supports)}}


def graph_manager(
    graph_tokens,
    budget_tokens=8192,
    mode="FULL_AND_PIECEWISE",
    whole_graph_tokens=0,
    supports=("ALWAYS", "ALWAYS"),
    decode_query_len=1,
    linear_weights=0,
    adapters=None,
    mixed=False,
    **parallel,
):
    """vLLM's own graph manager with our two sets of graphs, as far as it needs no GPU."""
    compilation = SimpleNamespace(
        cudagraph_capture_sizes=list(SIZES),
        max_cudagraph_capture_size=512,
        static_forward_context=attention_layers(*supports),
    )
    config = SimpleNamespace(
        additional_config={"nestedfp": {"graph_tokens": graph_tokens, "whole_graph_tokens": whole_graph_tokens}},
        scheduler_config=SimpleNamespace(max_num_batched_tokens=budget_tokens, max_num_seqs=1024),
        speculative_config=None,
        compilation_config=compilation,
        parallel_config=SimpleNamespace(
            **{
                "data_parallel_size": 1,
                "tensor_parallel_size": 1,
                "pipeline_parallel_size": 1,
                "decode_context_parallel_size": 1,
                "prefill_context_parallel_size": 1,
                **parallel,
            }
        ),
        model_config=SimpleNamespace(is_encoder_decoder=False),
    )
    manager = object.__new__(DualPrecisionGraphManager)
    manager.linear_weights, manager.runs_mixed = linear_weights, lambda: mixed
    with pytest.MonkeyPatch.context() as patched:
        stage = SimpleNamespace(is_first_rank=True, is_last_rank=True)
        patched.setattr(cudagraph_utils, "get_pp_group", lambda: stage)
        patched.setattr(type(cudagraph_utils.current_platform), "get_global_graph_pool", lambda self: None)
        manager.__init__(config, None, CUDAGraphMode[mode], decode_query_len, lora_capture_cases=adapters)
    manager._graphs_captured = True
    return manager


def largest(manager, cg_mode, case):
    """The tokens of a precision's largest graph that steps with prompts replay; 0: none."""
    descs = {desc for candidates in manager._candidates.values() for desc in candidates}
    found = [d for d in descs if d.uniform_token_count is None and (d.num_active_loras, d.cg_mode) == (case, cg_mode)]
    return max((d.num_tokens for d in found), default=0)


def test_steps_with_prompts_get_piecewise_graphs_above_vllm_s_sizes_in_both_precisions():
    manager = graph_manager(2048)
    for precision in KEYS:
        (found,) = manager._candidates[600, precision]
        assert (found.cg_mode, found.num_tokens) == (CUDAGraphMode.PIECEWISE, 608)
        assert found.num_active_loras == precision
        assert (2049, precision) not in manager._candidates
    assert manager.compilation_config.cudagraph_capture_sizes == [1, 2, 4, 8, 256, 512], "vLLM's configuration stays"
    full = {desc.num_tokens for desc in manager._capture_descs[CUDAGraphMode.FULL]}
    assert max(full) == 512, "decode graphs stay as they were"


def test_larger_graphs_end_at_the_token_budget_and_can_be_switched_off():
    assert max(tokens for tokens, _ in graph_manager(2048, 1000)._candidates) == 1000
    assert max(tokens for tokens, _ in graph_manager(0)._candidates) == 512
    assert max(tokens for tokens, _ in graph_manager(2048, mode="FULL_DECODE_ONLY")._candidates) == 512


def test_steps_with_prompts_get_whole_graphs_before_piecewise_ones():
    manager = graph_manager(2048, whole_graph_tokens=512)
    dispatch = super(type(manager), manager).dispatch  # ours takes the precision from the worker's mode
    for precision in KEYS:
        mixed = dispatch(60, 300, None, precision, max_query_len=240)
        assert (mixed.cg_mode, mixed.num_tokens, mixed.num_reqs) == (CUDAGraphMode.FULL, 512, 512)
        assert mixed.num_active_loras == precision
        decodes = dispatch(200, 200, 1, precision, max_query_len=1)
        assert (decodes.cg_mode, decodes.num_tokens, decodes.uniform_token_count) == (CUDAGraphMode.FULL, 256, 1)
        assert dispatch(60, 600, None, precision, max_query_len=540).cg_mode == CUDAGraphMode.PIECEWISE
        assert dispatch(2, 8, None, precision, max_query_len=7).num_tokens == 256, "the smallest whole one"
    captured = manager._capture_descs[CUDAGraphMode.FULL]
    assert len(set(captured)) == len(captured)


@pytest.mark.parametrize(("cases", "captured"), [([0, 5], {0: 0, 1: 5, 4: 5}), ([0, 1, 2, 4, 5], {0: 0, 1: 1, 3: 4})])
def test_every_number_of_adapters_has_its_graphs_in_both_precisions(monkeypatch, fp16_again, cases, captured):
    manager = graph_manager(2048, whole_graph_tokens=512, adapters=cases)

    def capture(self, lora_capture_hook):
        for descs in self._capture_descs.values():
            for desc in descs:
                lora_capture_hook(desc.num_active_loras, 1, desc.num_tokens)

    monkeypatch.setattr(cudagraph_utils.ModelCudaGraphManager, "capture", capture)
    seen = set()
    manager.capture(lora_capture_hook=lambda adapters, requests, tokens: seen.add((ops.get_mode(), adapters, tokens)))
    assert ops.get_mode() is Mode.FP16
    assert {(mode, case) for mode, case, _ in seen} == {(mode, case) for mode in Mode for case in cases}
    for mode in Mode:
        ops.set_mode(mode)
        for active, case in captured.items():
            for found in (manager.dispatch(200, 200, 1, active), manager.dispatch(60, 300, None, active, 240)):
                assert found.cg_mode == CUDAGraphMode.FULL
                assert (mode_of(found.num_active_loras), found.num_active_loras % FAST) == (mode, case)
                assert (mode, case, found.num_tokens) in seen


def test_graphs_of_both_kinds_of_rows_have_fast_ones_and_hold_what_is_beyond_one_launch_s_exact_rows():
    sizes = mixed_sizes(1100)
    assert sizes == sorted(set(sizes))
    assert all(exact < total for exact, total in sizes)
    assert {total for exact, total in sizes if exact == 64} == {*range(128, 769, 64), 896, 1024, 1100}
    assert mixed_sizes(64) == []


def test_a_step_of_both_kinds_of_rows_replays_the_graph_with_the_fewest_exact_rows_that_holds_it(
    monkeypatch, fp16_again
):
    manager, captured = graph_manager(2048, whole_graph_tokens=512, mixed=True), {}

    def capture(self, lora_capture_hook):
        for descs in self._capture_descs.values():
            for desc in descs:
                lora_capture_hook(desc.num_active_loras, 1, desc.num_tokens)
                captured[desc] = ops.get_mode(), ops.exact_rows()

    monkeypatch.setattr(cudagraph_utils.ModelCudaGraphManager, "capture", capture)
    manager.capture()
    assert (ops.get_mode(), ops.exact_rows()) == (Mode.FP16, 0)
    for exact, rows, graph in (
        (1, 2, (64, 128)),
        (50, 350, (64, 384)),
        (64, 129, (64, 192)),
        (65, 1025, (128, 1152)),
        (513, 520, (640, 704)),
        (1024, 2048, (1024, 2048)),
    ):
        ops.set_mixed(torch.arange(rows) < exact)
        found = manager.dispatch(60, rows, None, max_query_len=rows)
        assert (found.cg_mode, found.num_tokens, found.num_reqs) == (CUDAGraphMode.PIECEWISE, graph[1], None)
        assert captured[found] == (Mode.FP8, graph[0])
        assert mode_of(found.num_active_loras) is Mode.FP8
        assert found.num_active_loras // EXACT_ROW == graph[0]
    for exact, rows in ((1025, 2000), (64, 2049)):
        ops.set_mixed(torch.arange(rows) < exact)
        assert manager.dispatch(60, rows, None).cg_mode == CUDAGraphMode.NONE


@pytest.mark.parametrize(
    "changes", [{"mixed": False}, {"mixed": True, "adapters": [0, 5]}, {"mode": "FULL_DECODE_ONLY"}]
)
def test_an_engine_that_runs_no_such_steps_or_counts_adapters_has_no_graphs_of_both_kinds_of_rows(changes, fp16_again):
    manager = graph_manager(2048, **{"mixed": True, **changes})
    assert all(desc.num_active_loras < EXACT_ROW for descs in manager._capture_descs.values() for desc in descs)
    ops.set_mixed(torch.arange(300) < 50)
    assert manager.dispatch(60, 300, None).cg_mode == CUDAGraphMode.NONE


@pytest.fixture
def h100(monkeypatch):
    found = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: found)


@pytest.mark.parametrize("up_to", [0, 512, 2048])
def test_sizes_that_the_gpu_is_busy_with_for_longer_than_the_host_have_no_graph(h100, up_to):
    layers = ("ALWAYS",) * 40
    manager = graph_manager(2048, linear_weights=23_000_000_000, supports=layers, whole_graph_tokens=up_to)
    most = [host_bound_tokens(23_000_000_000, 40, mode, 132) for mode in (Mode.FP16, Mode.FP8)]
    for precision, tokens in zip(KEYS, most, strict=True):
        expected = [size for size in [512, *larger_sizes(512, 2048)] if size <= tokens]
        assert len(expected) > 1
        captured = {
            desc.num_tokens
            for descs in manager._capture_descs.values()
            for desc in descs
            if desc.num_active_loras == precision
        }
        assert max(captured) == expected[-1]
        assert {*expected[1:]} <= captured
        assert max(tokens for tokens, case in manager._candidates if case == precision) == expected[-1]
        assert largest(manager, CUDAGraphMode.PIECEWISE, precision) == expected[-1]
        assert largest(manager, CUDAGraphMode.FULL, precision) == (256 if up_to else 0)
        assert manager._candidates[300, precision], "vLLM's own sizes stay"
    replayed = {desc for descs in manager._candidates.values() for desc in descs}
    assert replayed <= {desc for descs in manager._capture_descs.values() for desc in descs}, "each has its graph"
    for descs in manager._capture_descs.values():
        ordered = in_capture_order(descs)
        assert ordered[0].num_tokens == max(desc.num_tokens for desc in descs), "vLLM sizes the results by the first"
        changes = [a for a, b in pairwise(ordered) if a.num_active_loras != b.num_active_loras]
        assert len(changes) == 1, "one precision after the other"


def test_whole_graphs_end_where_the_host_launches_the_pieces_sooner_than_the_gpu_computes_them(h100):
    def whole_of(weights, precision):
        manager = graph_manager(2048, linear_weights=weights, supports=("ALWAYS",) * 40, whole_graph_tokens=2048)
        descs = manager._capture_descs.get(CUDAGraphMode.FULL, [])
        found = {d.num_tokens for d in descs if d.num_active_loras == precision and d.uniform_token_count is None}
        pieces = [d for d in manager._candidates[500, precision] if d.cg_mode == CUDAGraphMode.PIECEWISE]
        assert bool(pieces) is (512 not in found), "one or the other"
        return found

    for precision, mode in zip(KEYS, Mode, strict=True):
        most = host_bound_tokens(20_000_000_000, 40, mode, 132, in_pieces=True)
        assert whole_of(20_000_000_000, precision) == {n for n in (256, 512) if n <= most}
    assert whole_of(20_000_000_000, 0) == {256}
    assert 512 in whole_of(20_000_000_000, FAST)
    assert whole_of(60_000_000_000, 0) == set()


@pytest.mark.parametrize("parallel", ["pipeline_parallel_size", "data_parallel_size"])
def test_stages_and_replicas_that_compute_one_step_have_the_same_sizes(h100, parallel):
    manager = graph_manager(2048, linear_weights=23_000_000_000, supports=("ALWAYS",) * 40, **{parallel: 2})
    for precision in KEYS:
        assert max(tokens for tokens, case in manager._candidates if case == precision) == 2048


def whole_sizes(graph_tokens=2048, **settings):
    return sizes_of(graph_manager(graph_tokens, **settings), "FULL")


def sizes_of(manager, mode):
    """Token counts that are captured for steps with prompts."""
    found = manager._capture_descs.get(CUDAGraphMode[mode], [])
    return {desc.num_tokens for desc in found if desc.uniform_token_count is None}


def test_whole_graphs_have_vllm_s_sizes_up_to_the_limit():
    assert whole_sizes(whole_graph_tokens=2048) == {256, 512}
    assert whole_sizes(whole_graph_tokens=300) == {256}
    assert whole_sizes(whole_graph_tokens=2048, decode_query_len=4) == set()


@pytest.mark.parametrize(("up_to", "pieces"), [(512, {*larger_sizes(512, 2048)}), (300, {512})])
def test_pieces_that_nothing_replays_are_not_captured_but_for_the_largest(up_to, pieces):
    manager = graph_manager(2048, whole_graph_tokens=up_to)
    found = sizes_of(manager, "PIECEWISE")
    assert pieces <= found
    assert (256 in found) is False
    replayed = {desc for descs in manager._candidates.values() for desc in descs}
    assert replayed <= {desc for descs in manager._capture_descs.values() for desc in descs}, "each has its graph"
    for tokens in range(1, 2049):
        found = [desc for desc in manager._candidates[tokens, FAST] if desc.uniform_token_count is None]
        assert len(found) == 1
        assert found[0].cg_mode == (CUDAGraphMode.FULL if tokens <= max(whole(up_to)) else CUDAGraphMode.PIECEWISE)


def whole(up_to):
    return [size for size in (256, 512) if size <= up_to]


@pytest.mark.parametrize(
    "unfit",
    [
        {"supports": ("ALWAYS", "UNIFORM_BATCH")},
        {"decode_query_len": 4},
        {"mode": "PIECEWISE"},
        {"data_parallel_size": 2},
        {"decode_context_parallel_size": 2},
        {"prefill_context_parallel_size": 2},
    ],
    ids=str,
)
def test_where_attention_does_not_take_any_mix_of_queries_there_are_no_whole_graphs(unfit):
    assert whole_sizes(whole_graph_tokens=512, **unfit) == set()
