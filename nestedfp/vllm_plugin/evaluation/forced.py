"""A vLLM engine in this process that computes windows of a text, each in one step, and gives the logits of every position.

Row i of such a step is position i, so that a mask by rows makes each position exact or fast: a nested layer then multiplies all
rows in both precisions and takes from each what the mask says. Later positions attend to keys and values that were computed so.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from vllm import LLM, SamplingParams
from vllm.platforms import current_platform

from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.steps.step_rule import StepRule
from nestedfp.vllm_plugin import control
from nestedfp.vllm_plugin.weights.coverage import cover


class Forced:
    """One engine.

    Args:
        llm: its front end.
        nested: whether its weights are nested.
    """

    def __init__(self, llm: LLM, nested: bool) -> None:
        self.llm, self.nested = llm, nested
        self._logits: list[torch.Tensor] = []
        self._mask: torch.Tensor | None = None  # [positions] bool, True: fast; None: as the directive says
        self._errors: dict[str, list[float]] | None = None
        (model,) = llm.apply_model(lambda model: model)
        self.fp8_share = cover(model).fp8_share  # of the weights' bytes
        compute_logits = model.compute_logits

        def keep_logits(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            found = compute_logits(hidden, *args, **kwargs)
            self._logits.append(found)
            return found

        model.compute_logits = keep_logits
        for name, module in model.named_modules():
            if getattr(module, "nestedfp", False):
                module.quant_method = _Masked(name, module.quant_method, self)

    def logits(self, window: Sequence[int], mode: Mode, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return the logits behind each token of a window but the last: [tokens - 1, vocabulary] float32.

        Args:
            window: token ids.
            mode: of all positions, where there is no mask.
            mask: [tokens] bool, True where a position is computed in FP8.
        """
        if self.nested:
            control.set_directive(self.llm, mode.value, StepRule())
        self._logits.clear()
        self._mask = mask
        try:
            asked = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
            self.llm.generate([{"prompt_token_ids": list(window)}], asked, use_tqdm=False)
        finally:
            self._mask = None
        # One call of a row samples; those of more are the window's, in chunks where the runner cuts them.
        found = torch.cat([each for each in self._logits if each.shape[0] > 1])[: len(window) - 1]
        if found.shape[0] < len(window) - 1:
            raise RuntimeError(f"expected logits of {len(window) - 1} positions in one step, got {found.shape[0]}")
        return found.float()

    def layer_errors(self, windows: Sequence[Sequence[int]]) -> dict[str, float]:
        """Return by nested layer the error of its FP8 output, relative to its FP16 output, with exact inputs (norms)."""
        sums: dict[str, list[float]] = {}
        self._errors = sums
        try:
            for window in windows:
                self.logits(window, Mode.FP16, torch.zeros(len(window), dtype=torch.bool))
        finally:
            self._errors = None
        return {name: (error / square) ** 0.5 if square else 0.0 for name, (error, square) in sums.items()}

    def greedy(self, prompts: Sequence[Sequence[int]], mode: Mode, tokens: int) -> list[list[int]]:
        """Return the most likely continuation of each prompt."""
        if self.nested:
            control.set_directive(self.llm, mode.value, StepRule())
        asked = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
        given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        return [list(output.outputs[0].token_ids) for output in self.llm.generate(given, asked, use_tqdm=False)]


class _Masked:
    """A nested layer's method; under a mask it computes both precisions."""

    def __init__(self, name: str, method: Any, engine: Forced) -> None:
        self._name, self._method, self._engine = name, method, engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        mask = self._engine._mask
        if mask is None:
            return self._method.apply(layer, x, bias)
        before, found = ops.get_mode(), {}
        try:
            for mode in (Mode.FP16, Mode.FP8):
                ops.set_mode(mode)
                found[mode] = self._method.apply(layer, x, bias)
        finally:
            ops.set_mode(before)
        exact, fast = found[Mode.FP16], found[Mode.FP8]
        if (errors := self._engine._errors) is not None:
            sums = errors.setdefault(self._name, [0.0, 0.0])
            sums[0] += float((fast.float() - exact.float()).square().sum())
            sums[1] += float(exact.float().square().sum())
        return torch.where(mask.to(x.device)[: x.shape[0], None], fast, exact)


@contextmanager
def forced_engine(
    model: str, quantization: str | None, context: int, kv_cache_dtype: str = "auto", **options: Any
) -> Iterator[Forced]:
    """Start an engine for windows of ``context`` tokens; stop it at the end.

    vLLM must have been told, before it was imported, to keep its engine core in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0).

    Args:
        model: folder of a checkpoint.
        quantization: nestedfp, fp8 (vLLM's own, made while loading), or None: plain FP16.
        kv_cache_dtype: vLLM's; fp8 rounds what attention reads.
        options: of the plugin.

    Raises:
        Exception: vLLM's, where it cannot serve the model so.
    """
    # As a GPU computes: on a CPU activations would stay FP16 otherwise.
    options = {"quantize_activations": True, **options}
    arguments = {"additional_config": {"nestedfp": options}} if quantization == "nestedfp" else {}
    llm = LLM(
        model=model,
        quantization=quantization,
        dtype="float16",
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=context + 1,
        max_num_batched_tokens=max(context + 1, 256),
        max_num_seqs=16,
        kv_cache_memory_bytes=1 << 30,
        kv_cache_dtype=kv_cache_dtype,
        disable_log_stats=True,
        **arguments,
    )
    try:
        yield Forced(llm, quantization == "nestedfp")
    finally:
        del llm
        gc.unfreeze()  # vLLM freezes what an engine has when it starts
        gc.collect()
        if not current_platform.is_cpu():
            torch.cuda.empty_cache()
