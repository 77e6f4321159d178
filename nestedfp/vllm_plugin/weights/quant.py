"""The quantisation method ``nestedfp``: which layers are nested, and from which kind of checkpoint they come.

A checkpoint whose config.json carries ``{"quantization_config": {"quant_method": "nestedfp", ...}}`` stores the planes;
any other FP16 or BF16 checkpoint is converted layer by layer while it loads.
"""

import functools
from typing import Any

import torch
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase

from nestedfp.eligible import TAKES_OUT, computes_fp8, fp8_patterns, is_latent_up, is_router, require_fp8_layers
from nestedfp.format import FORMAT_VERSION
from nestedfp.vllm_plugin import wiring
from nestedfp.vllm_plugin.options import PluginOptions

METHOD = "nestedfp"
_KNOWN_KEYS = {"quant_method", "format_version", "ignore"}


class NestedFPConfig(QuantizationConfig):
    """Quantisation configuration of one model.

    Args:
        stored: the checkpoint holds the planes (True) or plain weights (False).
        ignore: names of modules that stay plain FP16.
    """

    def __init__(self, stored: bool = False, ignore: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.stored = stored
        self.ignore = list(ignore)
        self._layers: list[list[str]] = []  # that may have an FP8 mode; of each the modules that are fused into it
        self._mapper: Any = None  # of names on disk to those in vLLM's model

    def get_name(self) -> str:
        return METHOD

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        # Everything passes vLLM's own check so that wiring.check can refuse with a message that says what to set.
        return [torch.float16, torch.bfloat16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 70  # vLLM's own least; wiring.choose_path refuses what has no kernels, or runs it in FP16 only

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "NestedFPConfig":
        """Read ``quantization_config`` of a converted checkpoint.

        Raises:
            ValueError: for an unknown key, a format version that this code does not read, or no list of modules.
        """
        if unknown := sorted(set(config) - _KNOWN_KEYS):
            raise ValueError(
                f"config.json: quantization_config holds unknown keys {unknown}; nestedfp knows {sorted(_KNOWN_KEYS)}"
            )
        version = config.get("format_version")
        if version != FORMAT_VERSION:
            raise ValueError(
                f"config.json: quantization_config.format_version is {version!r}, this build reads {FORMAT_VERSION}; "
                "convert the original checkpoint again with nestedfp convert"
            )
        ignore = config.get("ignore", [])
        if not isinstance(ignore, list) or not all(isinstance(name, str) for name in ignore):
            raise ValueError(
                f"config.json: quantization_config.ignore is {ignore!r}, expected a list of modules' names; convert the original "
                "checkpoint again with nestedfp convert"
            )
        return cls(stored=True, ignore=tuple(ignore))

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        # Here and not above: the name is registered in every process, layers are made in workers.
        from vllm.config import get_current_vllm_config
        from vllm.model_executor.layers.fused_moe import RoutedExperts
        from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod

        from nestedfp.vllm_plugin.weights.layers import OnlineNestedLinear, StoredNestedLinear

        if isinstance(layer, LinearBase):
            wiring.require_our_parts(get_current_vllm_config())
            if self._stays_plain(layer, prefix):
                return UnquantizedLinearMethod()
            options = PluginOptions.of(get_current_vllm_config())
            layer.nestedfp_exact = self._stays_exact(options, prefix)
            if self.stored:
                return StoredNestedLinear(prefix, layer.nestedfp_exact)
            online = OnlineNestedLinear(prefix, layer.nestedfp_exact)
            return UnquantizedLinearMethod() if online.stays_plain else online
        if isinstance(layer, RoutedExperts):
            return self._experts(layer, prefix)
        return None

    def _experts(self, layer: Any, prefix: str) -> QuantizeMethodBase:
        from vllm.config import get_current_vllm_config
        from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

        from nestedfp.vllm_plugin.weights.experts import experts

        options = PluginOptions.of(get_current_vllm_config())
        plain = self._stays_plain(layer, prefix)
        if not plain and experts.why_plain(layer) is None:  # all experts of a layer are chosen as one
            layer.nestedfp_exact = self._stays_exact(options, f"{prefix}.0.up_proj")
        if self.stored and not plain:  # even where they are served plain, their planes have to be joined
            return experts.StoredNestedExperts(layer, prefix)
        if plain or experts.why_plain(layer):
            return UnquantizedFusedMoEMethod(layer.moe_config)
        return experts.OnlineNestedExperts(layer, prefix)

    def _stays_exact(self, options: PluginOptions, prefix: str) -> bool:
        """Whether the option ``fp8_layers`` leaves a layer in FP16."""
        self._layers.append(parts := self._parts(prefix))
        return not computes_fp8(self._patterns(options), parts)

    def _parts(self, prefix: str) -> list[str]:
        """Return the names of the modules that are fused into a layer."""
        stem, dot, leaf = prefix.rpartition(".")
        return [stem + dot + part for part in self.packed_modules_mapping.get(leaf, [leaf])]

    def _patterns(self, options: PluginOptions) -> list[str]:
        """Return the patterns of ``fp8_layers`` for names in vLLM's model."""
        found = []
        for pattern in fp8_patterns(options.fp8_layers):
            name = pattern.removeprefix(TAKES_OUT)
            mapped = self._mapper.apply_list([name]) if self._mapper else [name]
            found.append(pattern.removesuffix(name) + (mapped or [name])[0])
        return found

    def require_layers(self, options: PluginOptions) -> None:
        """Refuse an option ``fp8_layers`` that does not fit the model that was made.

        Raises:
            ValueError: see ``require_fp8_layers``.
        """
        choice = options.fp8_layers
        require_fp8_layers(choice if isinstance(choice, str) else self._patterns(options), self._layers)

    def _stays_plain(self, layer: Any, prefix: str) -> bool:
        from vllm.config import get_current_vllm_config

        if layer.params_dtype != torch.float16:  # a head that computes in FP32, say
            return True
        if is_router(prefix) or (is_latent_up(prefix) and get_current_vllm_config().model_config.use_mla):
            return True
        return prefix in self.ignore or any(part in self.ignore for part in self._parts(prefix))

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        """Give the ignored modules the names that they have in vLLM's model."""
        self.ignore, self._mapper = hf_to_vllm_mapper.apply_list(self.ignore), hf_to_vllm_mapper


@functools.cache  # vLLM warns of a name that it has
def register_method() -> None:
    """Make vLLM know the method's name. Idempotent."""
    from vllm.model_executor.layers.quantization import register_quantization_config

    register_quantization_config(METHOD)(NestedFPConfig)
