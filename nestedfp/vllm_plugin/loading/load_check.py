"""Whether a load has set all of a model: every element of its parameters, to finite values.

vLLM takes no notice where a layer that has a quantisation method gets no weight, or a part of one: it computes with memory as it
was allocated. Here every write into a parameter is counted while the checkpoint is loaded, whoever loads it and in how many
parts (q, k and v into one matrix; a rank's shard; each expert), on any device, the meta device too.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from nestedfp.checkpoint import CheckpointError, listed
from nestedfp.vllm_plugin.weights.experts.experts import NestedExpertsBase, OnlineNestedExperts, StoredNestedExperts
from nestedfp.vllm_plugin.weights.layers import NestedLinearBase, OnlineNestedLinear, StoredNestedLinear

# Their layers allocate weights and leave it to the checkpoint to fill them. Other methods make up what a checkpoint lacks.
METHODS = (
    NestedLinearBase,
    NestedExpertsBase,
    UnquantizedLinearMethod,
    UnquantizedFusedMoEMethod,
)
LAYERS = (LinearBase, RoutedExperts)
CHUNK_ELEMENTS = 1 << 22


class Writes(TorchDispatchMode):
    """Counts the elements that operators write in place, by the storage that they write to."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: Counter[int] = Counter()
        self._written: dict[Any, tuple[int, ...]] = {}  # operator -> positions of the arguments that it writes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in self._written:
            arguments = func._schema.arguments
            self._written[func] = tuple(
                position
                for position, argument in enumerate(arguments)
                if argument.alias_info is not None and argument.alias_info.is_write and not argument.kwarg_only
            )
        for position in self._written[func]:
            if position < len(args) and isinstance(args[position], torch.Tensor):
                self.elements[storage(args[position])] += args[position].numel()
        return result


def storage(tensor: torch.Tensor) -> int:
    """Return what all views of a tensor have in common, while it lives."""
    return int(tensor.untyped_storage()._cdata)


@dataclass(frozen=True, slots=True)
class _Expected:
    name: str
    module: torch.nn.Module
    attribute: str
    parameter: torch.nn.Parameter  # kept, so that no other storage gets its number
    storage: int
    is_layers: bool  # of a layer that leaves it to the checkpoint to fill each element


class LoadCheck:
    """Compares what a model has parameters for with what is written while ``writes`` counts; made before the load.

    A drafter's checkpoint may lack embeddings, which are the target model's then, and the map of token ids.
    """

    def __init__(self, model: torch.nn.Module, writes: Writes, *, is_drafter: bool = False) -> None:
        self.model, self.writes, self.is_drafter = model, writes, is_drafter
        modules = dict(model.named_modules())
        self.expected = []
        for name, parameter in model.named_parameters():
            path, _, attribute = name.rpartition(".")
            module = modules[path]
            method = getattr(module, "quant_method", None)
            is_layers = isinstance(module, LAYERS) and isinstance(method, METHODS)
            is_layers |= (
                isinstance(module, VocabParallelEmbedding) and attribute == "weight"
            )  # which no method makes up
            if method is None or is_layers:
                place = storage(parameter)
                self.expected.append(_Expected(name, module, attribute, parameter, place, is_layers))
        # A layer may have set its bias to zero before; a norm's ones, which its checkpoint must replace, do not count.
        for each in self.expected:
            if not each.is_layers:
                del writes.elements[each.storage]

    def missing(self, loaded: set[str] | None) -> list[str]:
        """Return the parameters that the load has left unset, or parts of them, with the elements that are there.

        Args:
            loaded: the names that the model says it has loaded or made up itself; None: it says nothing.
        """
        said = loaded or set()
        found = []
        for each in self.expected:
            total, written = each.parameter.numel(), self._written(each)
            if self._is_targets(each):
                continue
            if written < total and (each.is_layers or each.name not in said):
                parts = getattr(self.model, "packed_modules_mapping", {}).get(
                    each.name.rpartition(".")[0].rpartition(".")[2], ()
                )
                of = f" of {' and '.join(parts)}" if len(parts) > 1 else ""
                found.append(f"{each.name} ({written} of {total} elements{of})")
        return found

    def _is_targets(self, each: _Expected) -> bool:
        """Whether a drafter's checkpoint may lack this, and does."""
        may = isinstance(each.module, VocabParallelEmbedding) or not each.parameter.is_floating_point()
        return self.is_drafter and may and not self._written(each)

    def _written(self, each: _Expected) -> int:
        total, written = each.parameter.numel(), self.writes.elements
        method = getattr(each.module, "quant_method", None)
        now = getattr(each.module, each.attribute, None)
        if isinstance(method, StoredNestedLinear | StoredNestedExperts):
            if each.attribute.endswith("weight"):  # where parts that are plain arrive; they count with the planes
                return total
            stack, is_plane, _ = each.attribute.rpartition("weight_")
            scratch = getattr(each.module, "nestedfp_scratch", None)
            if isinstance(scratch, dict):
                scratch = scratch.get(stack.rstrip("_"))
            plain = 0 if scratch is None else written[storage(scratch)]
            return written[each.storage] + (plain if is_plane else 0)
        replaced = now is not each.parameter or storage(now) != each.storage
        if replaced and not isinstance(method, OnlineNestedLinear | OnlineNestedExperts):
            return total  # by the model itself
        return written[each.storage]

    def require(self, loaded: set[str] | None) -> None:
        """Refuse a model of which something is unset, NaN or infinite.

        Raises:
            CheckpointError: with the parameters' names in vLLM's model.
        """
        if missing := self.missing(loaded):
            raise CheckpointError(
                f"the checkpoint lacks weights of {len(missing)} parameters of the model: {listed(missing)}; copy the checkpoint "
                "again, or convert the original one again"
            )
        written = self.writes.elements
        expected = [each for each in self.expected if not self._is_targets(each)]
        tensors = [(each.name, getattr(each.module, each.attribute, None)) for each in expected]
        tensors += [(name, buffer) for name, buffer in self.model.named_buffers() if written[storage(buffer)]]
        for name, tensor in tensors:
            if tensor is None or tensor.is_meta:
                continue  # nested by now, or about to be, and looked at there
            if count := nonfinite(tensor.data):
                raise CheckpointError(
                    f"{name}: {count} of {tensor.numel()} weights are NaN or infinite as {tensor.dtype}; the checkpoint is "
                    "damaged, or holds values beyond FP16's 65504; nothing was loaded"
                )


def nonfinite(tensor: torch.Tensor) -> int:
    """Count the values that are NaN or infinite, on their own device; of integers none is."""
    if not tensor.is_floating_point():
        return 0
    parts = (tensor if tensor.itemsize > 1 else tensor.float()).reshape(-1).split(CHUNK_ELEMENTS)
    # A sum is no number, or infinite, where a value is: of sound weights this one fast pass is all.
    if all(bool(part.sum().isfinite()) for part in parts):
        return 0
    return sum(int((~part.float().isfinite()).sum()) for part in parts)


@contextmanager
def checked() -> Iterator[None]:
    """Have every model that vLLM loads from a checkpoint in here looked at, before its weights are packed.

    Raises:
        CheckpointError: see ``LoadCheck.require``.
    """
    original = BaseModelLoader.load_model

    @functools.wraps(original)
    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.load_config.load_format == "dummy":
            return original(self, *args, **kwargs)
        with ExitStack() as stack:
            writes = stack.enter_context(Writes())
            inner = self.load_weights

            def load_weights(model: torch.nn.Module, model_config: Any) -> None:
                said: list[set[str] | None] = []
                check = LoadCheck(model, writes, is_drafter=model_config.runner_type == "draft")
                model.load_weights = remembering(model.load_weights, said)
                try:
                    inner(model, model_config)
                except ValueError:  # vLLM's own comparison of names, which sees less
                    if said:
                        check.require(said[-1])
                    raise
                finally:
                    del model.load_weights
                    stack.close()
                check.require(said[-1] if said else None)

            self.load_weights = load_weights
            try:
                return original(self, *args, **kwargs)
            finally:
                del self.load_weights

    BaseModelLoader.load_model = load_model  # type: ignore[method-assign]
    try:
        yield
    finally:
        BaseModelLoader.load_model = original  # type: ignore[method-assign]


def remembering(load_weights: Callable[..., Any], said: list[set[str] | None]) -> Callable[..., Any]:
    """Return a model's ``load_weights`` that also leaves its answer in ``said``."""

    def load(*args: Any, **kwargs: Any) -> Any:
        loaded = load_weights(*args, **kwargs)
        said.append(loaded)
        return loaded

    return load
