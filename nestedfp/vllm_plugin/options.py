"""The plugin's own options, given to vLLM as ``additional_config={"nestedfp": {...}}``.

They travel with vLLM's configuration to every process and are part of the key of its cache of compiled graphs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from nestedfp.eligible import ALL_LAYERS, fp8_patterns
from nestedfp.modes import DirectiveMode
from nestedfp.steps.slo_rule import USUAL_SHARES
from nestedfp.steps.step_rule import StepRule

if TYPE_CHECKING:
    from vllm.config import VllmConfig

OPTIONS_KEY = "nestedfp"
KV_IS_FP8 = "this engine's KV cache is FP8 (kv_cache_dtype)"
PLAIN_KV_DTYPES, FP8_KV_DTYPES = ("auto", "float16"), ("fp8", "fp8_e4m3", "fp8_e5m2")
USUAL_SLO_MS = {"ttft_ms": 200.0, "tpot_ms": 33.3}  # the usual interactive one
MOST_SLO_MS = 86_400_000
CHOICES = {
    "experts": ("auto", "nested", "plain"),
    "step_costs": ("auto", "measure", "off"),
    "gemm_choice": ("measure", "model"),
    "fused_quantiser": ("auto", "never"),
}


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """Options of one engine.

    Attributes:
        experts: whether the experts of a mixture (MoE) are nested or stay plain FP16 in both classes; "auto": nested, but plain on
            a GPU with what nested ones lack: adapters, data-parallel ranks, balancing of experts (EPLB). Those without a kernel
            here (biases, an activation that is neither SiLU nor GELU, another GPU than Hopper) are always plain.
        quantize_activations: FP8 steps on a CPU also round the activations of each token to E4M3, as a GPU does, so
            that the quality of the GPU's FP8 mode can be judged without one. Slower; off by default.
        step_costs: whether the worker times its steps in both precisions when it starts, so that ``auto`` can leave FP8
            alone where it saves nothing: "measure", "off", or "auto", which measures on a GPU. On a CPU that other
            processes share, a short measurement says little.
        gemm_choice: how a GPU's GEMM configs are chosen, and on GPUs other than Hopper what goes to a library
            (weights/library_route.py): "measure", by what they take on this card, timed when an engine with such layers first
            starts and kept on disk, or "model", by the cost model, and no library. Times of another day may choose another order
            of additions, so that last bits differ between engines.
        graph_tokens: CUDA graphs for steps of up to so many tokens, in both precisions, beyond the sizes that vLLM captures;
            0: vLLM's sizes alone.
        whole_graph_tokens: steps with prompts in them of up to so many tokens, vLLM's largest graph at most, replay one graph with
            the attention in it, where the attention's kernels allow it (FlashAttention 3), instead of one for each piece
            between two attentions; 0: none.
        fused_quantiser: norms and activations before nested layers are this project's, and in FP8 steps write E4M3 codes
            themselves, where no other layer reads them (weights/fused_quantiser.py): one launch less before three of a
            transformer block's four linear layers. "auto": on Hopper, where vLLM compiles the model; "never".
        mixed_steps: a step may hold exact and fast requests (nestedfp/steps/rows/row_rule.py), where the engine can run such steps.
        slo: objectives that the engine keeps until somebody directs it: ``{"ttft_ms": 200, "tpot_ms": 33.3}``, or one of the
            two, the other as here. None: every step is FP16 until then. Of ``vllm serve`` the plugin fills in these two.
        fp8_layers: which layers compute in FP8 in a fast step, the others in FP16: "all", "mlp" (all but attention), or a list of
            patterns of their names (nestedfp/eligible.py).
        checkpoint: fingerprint of the checkpoint's files; filled in by the plugin.
    """

    experts: str = "auto"
    quantize_activations: bool = False
    step_costs: str = "auto"
    gemm_choice: str = "measure"
    graph_tokens: int = 2048
    whole_graph_tokens: int = 512
    fused_quantiser: str = "auto"
    mixed_steps: bool = True
    slo: Mapping[str, float] | None = None
    fp8_layers: str | Sequence[str] = ALL_LAYERS
    checkpoint: str = ""

    def directive(self) -> tuple[DirectiveMode, StepRule]:
        """Return what is in force until somebody directs the engine."""
        if self.slo is None:
            return DirectiveMode.FP16, StepRule()
        return DirectiveMode.AUTO, slo_rule(self.slo)

    def measures_steps(self, is_cpu: bool) -> bool:
        """Whether the worker times its steps when it starts."""
        return self.step_costs == "measure" or (self.step_costs == "auto" and not is_cpu)

    def nests_experts(self, config: "VllmConfig", *, is_cpu: bool) -> bool:
        """Return whether experts are nested that have a kernel."""
        parallel = config.parallel_config
        asks_more = config.lora_config is not None or parallel.data_parallel_size > 1 or parallel.enable_eplb
        return self.experts == "nested" or (self.experts == "auto" and (is_cpu or not asks_more))

    @classmethod
    def of(cls, config: "VllmConfig") -> "PluginOptions":
        """Read the options of an engine.

        Raises:
            ValueError: for an unknown option, or a value of the wrong type or none of the choices.
        """
        beside: Any = config.additional_config or {}
        given: Any = beside.get(OPTIONS_KEY, {})
        known = {f.name: type(f.default) for f in fields(cls)}
        # Others may have keys there; one of these would be an SLO, say, that nobody keeps.
        if lost := [key for key in beside if key in known or (key != OPTIONS_KEY and str(key).lower() == OPTIONS_KEY)]:
            raise ValueError(
                f"additional_config: {lost}: expected under the key {OPTIONS_KEY!r}; put the options there"
            )
        if not isinstance(given, dict):
            raise ValueError(f"additional_config[{OPTIONS_KEY!r}]: expected a mapping of options; got {given!r:.200}")
        if unknown := [key for key in given if key not in known]:
            raise ValueError(
                f"additional_config[{OPTIONS_KEY!r}]: unknown {unknown}, expected keys out of {sorted(known)}"
            )
        if given.get("slo") is not None:
            slo_rule(given["slo"])
            given = {**given, "slo": {**USUAL_SLO_MS, **given["slo"]}}
            known["slo"] = dict
        if "fp8_layers" in given:
            fp8_patterns(given["fp8_layers"])
            known["fp8_layers"] = object
        for name, value in given.items():
            if name in CHOICES and value not in CHOICES[name]:
                raise ValueError(
                    f"additional_config[{OPTIONS_KEY!r}][{name!r}] must be one of {CHOICES[name]}; got {value!r}"
                )
            if not isinstance(value, known[name]) or (
                known[name] is int and (value is True or value is False or value < 0)
            ):
                raise ValueError(
                    f"additional_config[{OPTIONS_KEY!r}][{name!r}] must be of type {known[name].__name__}"
                    f"{' from 0 on' if known[name] is int else ''}; got {value!r}"
                )
        return cls(**given)


def rounds_kv(config: "VllmConfig") -> bool:
    """Whether an engine's KV cache rounds, so that no answer is exact, whatever its steps."""
    return config.cache_config.cache_dtype not in PLAIN_KV_DTYPES


def slo_rule(given: Any) -> StepRule:
    """Return the rule that keeps an SLO.

    Args:
        given: ``{"ttft_ms": 200, "tpot_ms": 33.3}``, or one of the two.

    Raises:
        ValueError: for anything else.
    """
    wrong = not isinstance(given, Mapping) or bool(given.keys() - USUAL_SLO_MS.keys())
    if wrong or not all(type(ms) in (int, float) and 0 < ms <= MOST_SLO_MS for ms in given.values()):
        raise ValueError(f"slo: expected milliseconds above 0, up to a day, as in {USUAL_SLO_MS}; got {given!r:.200}")
    return USUAL_SHARES.rule(**{**USUAL_SLO_MS, **given})
