"""A backend for torch.compile that runs vLLM's post-grad passes where Inductor runs them, and the resulting graph as it is.

Inductor's own code generation rounds elsewhere than the operators do, so bits can be compared without it only.
"""

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import detect_fake_mode
from torch._inductor import config as inductor_config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.post_grad import post_grad_passes
from torch._inductor.virtualized import V
from vllm.compilation.passes.inductor_pass import InductorPass, pass_context
from vllm.compilation.passes.ir.inplace_functionalization import VllmIRInplaceFunctionalizationPass
from vllm.compilation.passes.pass_manager import PostGradPassManager
from vllm.config.utils import Range


class PassBackend:
    """Pass it as ``backend``.

    Args:
        config: of the engine whose passes run.
        passes: that run after vLLM's own fusions.

    Attributes:
        graphs: those compiled so far, as they run.
    """

    def __init__(self, config, *passes: InductorPass) -> None:
        self.graphs: list[fx.GraphModule] = []
        self._config = config
        self._manager = PostGradPassManager()
        self._manager.configure(config)
        for each in passes:
            self._manager.add(each)

    def __call__(self, graph: fx.GraphModule, inputs: list[torch.Tensor]):
        with pass_context(Range(1, 1024)):
            VllmIRInplaceFunctionalizationPass(self._config)(graph.graph)
            return aot_autograd(fw_compiler=self._compile, decompositions=select_decomp_table())(graph, inputs)

    def _compile(self, graph: fx.GraphModule, inputs: list[torch.Tensor]):
        with (
            V.set_fake_mode(detect_fake_mode(inputs)),
            inductor_config.patch(post_grad_custom_post_pass=self._manager, enable_auto_functionalized_v2=False),
        ):
            post_grad_passes(graph, is_inference=True)
        graph.recompile()
        self.graphs.append(graph)
        return graph.forward

    def count(self, operator: str) -> int:
        """How many calls of ``torch.ops.nestedfp.<operator>`` the graphs hold."""
        wanted = getattr(torch.ops.nestedfp, operator).default
        return sum(node.target is wanted for graph in self.graphs for node in graph.graph.nodes)
