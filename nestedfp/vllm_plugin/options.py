"""The plugin's own options, given to vLLM as ``additional_config={"nestedfp": {...}}``.

They travel with vLLM's configuration to every process and are part of the key of its cache of compiled graphs.
"""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

OPTIONS_KEY = "nestedfp"


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """Options of one engine.

    Attributes:
        quantize_activations: FP8 steps on a CPU also round the activations of each token to E4M3, as a GPU does, so
            that the quality of the GPU's FP8 mode can be judged without one. Slower; off by default.
        checkpoint: fingerprint of the checkpoint's files; filled in by the plugin.
    """

    quantize_activations: bool = False
    checkpoint: str = ""

    @classmethod
    def of(cls, config: "VllmConfig") -> "PluginOptions":
        """Read the options of an engine.

        Raises:
            ValueError: for an unknown option or one of the wrong type.
        """
        given: Any = (config.additional_config or {}).get(OPTIONS_KEY, {})
        known = {f.name: type(f.default) for f in fields(cls)}
        if not isinstance(given, dict) or set(given) - set(known):
            raise ValueError(
                f"additional_config[{OPTIONS_KEY!r}] must be a mapping with keys out of {sorted(known)}; got {given!r}"
            )
        for name, value in given.items():
            if not isinstance(value, known[name]):
                raise ValueError(
                    f"additional_config[{OPTIONS_KEY!r}][{name!r}] must be a {known[name].__name__}; got {value!r}"
                )
        return cls(**given)
