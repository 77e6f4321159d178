"""A pass over vLLM's compiled graphs: what precedes a nested linear layer writes what it reads: codes and scales in FP8 mode.

    rms_norm -> linear               rms_norm -> linear_carried
    fused_add_rms_norm -> linear     add_rms_norm -> linear_carried
    silu * up -> linear              silu_and_mul -> linear_carried

The operators on the right (nestedfp/kernels/ops.py) read the mode when they run, so one compiled graph still serves both. Left
alone are results that anything but one nested linear layer reads, layers with an outlier list, which multiply activations that
were not quantised, and widths that a carrier cannot have. vLLM's pass manager runs this pass where it runs its own fusions of
norms and activations with quantisers: on a functional graph whose norms are still operators, before they are lowered.
"""

import hashlib
import operator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._inductor import pattern_matcher
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from vllm.compilation.passes.inductor_pass import InductorPass
from vllm.config import VllmConfig
from vllm.ir.ops import rms_norm  # noqa: F401  registers the norms
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.platforms import current_platform

from nestedfp.kernels import ops  # noqa: F401  registers the operators
from nestedfp.kernels.activations import CARRIER_COLUMNS, MAX_NORM_COLUMNS

LINEAR = torch.ops.nestedfp.linear.default
RMS_NORM = torch.ops.vllm_ir.rms_norm.default
ADD_RMS_NORM = torch.ops.vllm_ir.fused_add_rms_norm.default
SILU_AND_MUL = torch.ops.nestedfp.silu_and_mul.default


class FuseQuantiser(InductorPass):  # type: ignore[misc]
    """The pass. Without state, so that it travels in an engine's configuration to every process."""

    def __call__(self, graph: fx.Graph) -> None:
        _silu_patterns().apply(graph)
        for node in graph.find_nodes(op="call_function", target=LINEAR):
            _fuse(node)

    def uuid(self) -> str:
        """Return a key of this file: vLLM's configuration and both caches of compiled graphs hash it."""
        return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def install(config: VllmConfig) -> None:
    """Have vLLM run the pass, in every process that compiles this engine's graphs, unless another one has its place."""
    config.compilation_config.inductor_compile_config.setdefault(current_platform.pass_key, FuseQuantiser())


def is_installed(config: VllmConfig) -> bool:
    """Whether an engine's graphs are compiled with the pass."""
    passes = config.compilation_config.inductor_compile_config
    return isinstance(passes.get(current_platform.pass_key), FuseQuantiser)


def _fuse(linear: fx.Node) -> None:
    """Fuse one linear layer with what precedes it, where that is possible."""
    producer = _producer(linear.args[0]) if _takes_carrier(linear) else None
    if producer is None:
        return
    graph = linear.graph
    if producer.target is SILU_AND_MUL:
        carrier, scales = linear.args[0], _item(producer, 1, before=linear)
    elif producer.target is RMS_NORM and _is_plain_norm(producer, linear, 3):
        x, weight, epsilon = producer.args[:3]
        fused = _call(graph, torch.ops.nestedfp.rms_norm.default, (x, weight, epsilon), before=producer)
        carrier, scales = (_item(fused, i, before=producer) for i in range(2))
    elif producer.target is ADD_RMS_NORM and _is_plain_norm(producer, linear, 4):
        x, residual, weight, epsilon = producer.args[:4]
        fused = _call(graph, torch.ops.nestedfp.add_rms_norm.default, (x, residual, weight, epsilon), before=producer)
        carrier, scales, total = (_item(fused, i, before=producer) for i in range(3))
        for item in list(producer.users):
            if item.args[1] == 1:
                item.replace_all_uses_with(total)
                graph.erase_node(item)
    else:
        return
    _, upper, lower, bias, _, _, _, n, k, _ = linear.args
    carried = _call(
        graph,
        torch.ops.nestedfp.linear_carried.default,
        (carrier, scales, upper, lower, bias, n, k),
        before=linear,
    )
    linear.replace_all_uses_with(carried)
    graph.erase_node(linear)  # what it leaves unread, vLLM's cleanup erases


def _takes_carrier(node: Any) -> bool:
    """Whether a node is a nested linear layer that quantises activations which nothing else reads."""
    if not isinstance(node, fx.Node) or node.target is not LINEAR or len(node.args) != 10:
        return False
    x, *_, outlier_rows, _, _, _, k, quantizes = node.args
    return (
        outlier_rows is None
        and quantizes is True
        and isinstance(k, int)
        and k % CARRIER_COLUMNS == 0
        and isinstance(x, fx.Node)
        and len(x.users) == 1
        and x.meta["val"].dtype == torch.float16
    )


def _producer(x: Any) -> fx.Node | None:
    """Return the operator whose first result ``x`` is, if it is nothing else's."""
    if x.target is not operator.getitem:
        return x if x.op == "call_function" else None
    producer, index = x.args
    is_only = index == 0 and sum(item.args[1] == 0 for item in producer.users) == 1
    return producer if is_only else None


def _is_plain_norm(norm: fx.Node, linear: fx.Node, required: int) -> bool:
    """Whether our kernels compute what a norm of vLLM's does: FP16, with a weight, over whole rows that are not too long."""
    *tensors, _ = norm.args[:required]
    _, *rest = norm.args[required - 1 :]
    return (
        not norm.kwargs
        and all(part is None for part in rest)  # variance_size
        and all(isinstance(each, fx.Node) and each.meta["val"].dtype == torch.float16 for each in tensors)
        and linear.args[8] <= MAX_NORM_COLUMNS
    )


def _call(graph: fx.Graph, target: Any, args: tuple[Any, ...], *, before: fx.Node) -> fx.Node:
    """Insert a call, with the shapes that later passes and Inductor ask for."""
    with graph.inserting_before(before):
        node = graph.call_function(target, args)
    values = fx.map_arg(args, lambda each: each.meta["val"])
    with detect_fake_mode(values):
        node.meta["val"] = target(*values)
    return node


def _item(node: fx.Node, index: int, *, before: fx.Node) -> fx.Node:
    with node.graph.inserting_before(before):
        item = node.graph.call_function(operator.getitem, (node, index))
    item.meta["val"] = node.meta["val"][index]
    return item


@cache
def _silu_patterns() -> pattern_matcher.PatternMatcherPass:
    """The silu and the product that vLLM leaves to Inductor: four to six operators, in the spelling that Inductor gives them."""
    patterns = pattern_matcher.PatternMatcherPass(pass_name="nestedfp_silu_and_mul")

    def replacement(x: torch.Tensor) -> torch.Tensor:
        return SILU_AND_MUL(x)[0]

    def feeds_linear(match: pattern_matcher.Match) -> bool:
        product = match.output_node()
        return len(product.users) == 1 and all(
            _takes_carrier(user) and user.args[0] is product for user in product.users
        )

    with torch._guards.tracing(None), unset_fake_temporarily(), FakeTensorMode():
        pattern_matcher.register_replacement(
            SiluAndMul.forward_native,
            replacement,
            [torch.empty(5, 2 * CARRIER_COLUMNS, dtype=torch.float16)],
            pattern_matcher.fwd_only,
            patterns,
            extra_check=feeds_linear,
        )
    return patterns
