"""One model, one text, every way to compute it: each engine in turn, window by window, against plain vLLM's logits on the disk."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm.platforms import current_platform

from nestedfp.evaluation.comparison import MIXES, Comparison, divergence_of
from nestedfp.modes import Mode
from nestedfp.vllm_plugin.evaluation.forced import Forced, forced_engine

REFERENCE, EXACT, FAST = "plain vLLM, FP16", "exact", "fast"
# Engines that vLLM does not have everywhere: quantization, cache's type, and the classes that they are measured in.
OPTIONAL = (
    ("fp8", "auto", {"vLLM's own FP8": Mode.FP8}),
    ("nestedfp", "fp8", {"exact weights, FP8 KV cache": Mode.FP16, "fast, FP8 KV cache": Mode.FP8}),
)
PASSES = 3 + len(MIXES) + sum(len(modes) for *_, modes in OPTIONAL)  # over the text
ANSWER_TOKENS = 64
LAYER_WINDOWS = 4  # for the errors of layers


class _Run:
    """What is known so far.

    Args:
        windows: token ids, all of one length.
        prompts: beginnings of windows, for greedy answers.
        done: is told of positions.
    """

    def __init__(
        self, windows: Sequence[list[int]], prompts: Sequence[list[int]], done: Callable[[int], object]
    ) -> None:
        self.windows, self.prompts, self.done = windows, prompts, done
        self.classes: dict[str, Any] = {}
        self.answers: dict[str, list[list[int]]] = {}
        self.name = ""  # of the reference
        self.reference: Any = None  # [windows, positions, vocabulary] float16

    def refer(self, name: str, engine: Forced, file: Path) -> None:
        """Keep an engine's logits in a file: the reference."""
        comparison = Comparison()
        for number, window in enumerate(self.windows):
            logits = engine.logits(window, Mode.FP16).cpu().numpy().astype(np.float16)
            if self.reference is None:
                shape = (len(self.windows), *logits.shape)
                self.reference = np.lib.format.open_memmap(file, "w+", np.float16, shape)
            self.reference[number] = logits
            kept = torch.from_numpy(logits).float()
            comparison.add(kept, kept, torch.tensor(window[1:]), torch.zeros(len(kept), dtype=torch.bool))
            self.done(len(window))
        self.name = name
        self.classes[name] = comparison.as_json()
        self._answer(name, engine, Mode.FP16)

    def _answer(self, name: str, engine: Forced, mode: Mode) -> None:
        if self.prompts:
            self.answers[name] = engine.greedy(self.prompts, mode, min(ANSWER_TOKENS, len(self.windows[0]) // 2))

    def compare(
        self, name: str, engine: Forced, mode: Mode, masks: Sequence[torch.Tensor | None] | None = None
    ) -> None:
        """Compare an engine in a mode, or under masks, with what was kept."""
        comparison = Comparison()
        for window, mask, kept in zip(self.windows, masks or [None] * len(self.windows), self.reference, strict=True):
            ours = engine.logits(window, mode, mask)
            fast = torch.full((len(ours),), mode is Mode.FP8) if mask is None else mask[: len(ours)]
            rest = torch.from_numpy(kept), torch.tensor(window[1:]), fast
            theirs, tokens, fast = (each.to(ours.device) for each in rest)  # a GPU's vocabularies are not for the host
            comparison.add(ours, theirs.float(), tokens, fast)
            self.done(len(window))
        if masks is None:
            self._answer(name, engine, mode)
        self.classes[name] = comparison.as_json()

    def report(self, layer_errors: dict[str, float]) -> dict[str, Any]:
        """Return what is known."""
        greedy = {
            name: divergence_of(found, self.answers[self.name])
            for name, found in self.answers.items()
            if name != self.name
        }
        tokens = sum(map(len, self.windows))
        machine = "CPU" if current_platform.is_cpu() else torch.cuda.get_device_name()
        return {
            "machine": machine,
            "tokens": tokens,
            "classes": self.classes,
            "greedy": greedy,
            "layer_errors": layer_errors,
        }


def measure(
    model: str, windows: Sequence[list[int]], answers: int, done: Callable[[int], object]
) -> Iterator[dict[str, Any]]:
    """Yield ``tokens``, ``classes``, ``greedy`` and ``layer_errors`` (schema: docs/fidelity.md), again with each of OPTIONAL.

    Args:
        model: folder of a plain checkpoint.
        windows: token ids, all of one length.
        answers: how many greedy answers to compare, at most one a window.
        done: is told of positions, PASSES times each.
    """
    context = len(windows[0])
    run = _Run(windows, [window[: context // 4] for window in windows[:answers]], done)
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        with forced_engine(model, None, context) as plain:
            run.refer(REFERENCE, plain, Path(folder) / "logits.npy")
        with forced_engine(model, "nestedfp", context) as nested:
            run.compare(EXACT, nested, Mode.FP16)
            run.compare(FAST, nested, Mode.FP8)
            for mix in MIXES:
                run.compare(mix.name, nested, Mode.FP16, [mix.mask(context, generator) for _ in windows])
            layer_errors = nested.layer_errors(windows[:LAYER_WINDOWS])
        yield run.report(layer_errors)
        for quantization, kv_cache_dtype, modes in OPTIONAL:
            try:
                with forced_engine(model, quantization, context, kv_cache_dtype) as other:
                    for name, mode in modes.items():
                        run.compare(name, other, mode)
            except Exception as error:  # vLLM has many ways to refuse; the rest of the report stands
                last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
                run.classes |= {name: {"unavailable": last[:160]} for name in modes if name not in run.classes}
            yield run.report(layer_errors)


def measure_choices(
    model: str,
    windows: Sequence[list[int]],
    answers: int,
    done: Callable[[int], object],
    choices: Mapping[str, str | list[str]],
) -> Iterator[dict[str, Any]]:
    """Yield the same of fast answers for each choice of layers that compute in FP8, against exact ones.

    Args:
        model, windows, answers, done: as of ``measure``; one pass, and one for each choice.
        choices: by name.
    """
    context = len(windows[0])
    run = _Run(windows, [window[: context // 4] for window in windows[:answers]], done)
    with tempfile.TemporaryDirectory() as folder:
        for text, choice in choices.items():
            with forced_engine(model, "nestedfp", context, fp8_layers=choice) as nested:
                if run.reference is None:
                    run.refer(EXACT, nested, Path(folder) / "logits.npy")
                name = f"{FAST}, {text}"
                run.compare(name, nested, Mode.FP8)
                run.classes[name]["fp8_weight_share"] = nested.fp8_share
            yield run.report({})
