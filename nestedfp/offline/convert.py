"""A plain checkpoint into one of NestedFP's planes, of the same size, and back.

Every weight is read and judged before the first one is written; so the source is read twice and the target written once. What
becomes of a linear layer's ``<name>.weight`` (nestedfp/format.py has the format):
    all |w| <= 1.75          -> ``<name>.weight_upper`` and ``<name>.weight_lower``
    up to 0.1 % beyond       -> stays ``<name>.weight`` and is nested, with its outlier list, while it loads
    more beyond              -> stays ``<name>.weight`` and is listed under ``ignore``, with the layers it is fused with
    a NaN or an infinity, in FP16, in this or any other weight -> the checkpoint is refused
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nestedfp.checkpoint import PLANES, CheckpointError, listed, read_config, read_weights
from nestedfp.eligible import beyond_fp16, experts_of
from nestedfp.format import FORMAT_VERSION
from nestedfp.offline.folder import check_target
from nestedfp.offline.reading import Progress, Weight, profiles, weights_of
from nestedfp.offline.rewrite import rewrite
from nestedfp.offline.verdicts import LISTED, NESTED, PLAIN, judge

# A projection inside a decoder layer, or of an expert there. The rest is for the loader to judge, which knows the layers that the
# model makes of it.
CONVERTED = re.compile(r"(^|\.)layers\.\d+\.(.*_proj|.*\.experts\.\d+\.\w+)$")


def ignore_progress(_nbytes: int) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a run did; modules are the names of layers."""

    nested: list[str]  # planes in the nested checkpoint
    listed: dict[str, int]  # module -> weights beyond 1.75; nested while it loads
    plain: list[str]  # not to be nested, for their values or those of a layer that they are fused with
    inexact_casts: int  # weights of any tensor that FP16 cannot hold exactly
    nbytes: int  # of the source's weights
    sha256: dict[str, str]  # shard -> digest of the data of the plain shard, which a restored one has again

    def summary(self) -> str:
        """Return one line for a person."""
        text = f"{len(self.nested)} layers nested, {len(self.listed)} with outlier lists, {len(self.plain)} plain"
        if self.inexact_casts:
            text += f"; {self.inexact_casts} weights are rounded by the cast to FP16"
        return text


def convert(source: Path, target: Path, progress: Progress = ignore_progress) -> Report:
    """Convert a checkpoint folder.

    Args:
        source: folder with config.json and safetensors shards.
        target: folder to make; must not exist.
        progress: is told of bytes read: twice those of the source.

    Raises:
        CheckpointError: when the source cannot be converted; the target does not exist then.
        OSError: when a file cannot be read or written; likewise, and the next run goes on where this one stopped.
    """
    config = read_config(source)
    _require_plain(source, config)
    if said := beyond_fp16(config):
        raise CheckpointError(f"{source}: {said}")
    tensors = read_weights(source)
    if planes := [name for name in tensors if name.endswith(PLANES)]:
        raise CheckpointError(f"{source} holds planes already ({listed(planes)}); convert the original checkpoint")
    check_target(source, target, sum(stored.nbytes for stored in tensors.values()))
    weights = weights_of(tensors)
    found = profiles(weights, progress)
    for name, profile in found.items():
        if profile.fault:
            raise CheckpointError(
                f"{tensors[name].shard}: {name}: {profile.fault}; convert a checkpoint that FP16 can hold"
            )
    verdicts = judge({name: weight.shape for name, weight in weights.items()}, found)
    linear = {module: verdict for module, verdict in verdicts.items() if verdict.is_linear and CONVERTED.search(module)}
    plain = [module for module, verdict in linear.items() if verdict.kind == PLAIN]
    nested = [module for module, verdict in linear.items() if verdict.kind == NESTED]
    outliers = {
        module: found[f"{module}.weight"].outliers for module, verdict in linear.items() if verdict.kind == LISTED
    }
    if not nested and not outliers:
        raise CheckpointError(
            f"{source}: none of {len(weights)} tensors is a projection of a decoder layer that can be nested; ask nestedfp inspect"
        )
    config["quantization_config"] = {
        "quant_method": "nestedfp",
        "format_version": FORMAT_VERSION,
        "ignore": sorted({experts_of(module) or module for module in plain}),
    }
    for key in [key for key in ("dtype", "torch_dtype") if key in config] or ["torch_dtype"]:
        config[key] = "float16"
    digests = rewrite(source, target, weights, {f"{module}.weight" for module in nested}, config, progress)
    casts = sum(profile.flushed + profile.rounded for profile in found.values())
    return Report(nested, outliers, plain, casts, _nbytes(weights), digests)


def restore(source: Path, target: Path, progress: Progress = ignore_progress) -> Report:
    """Write the plain FP16 checkpoint of a nested one, with the bits of the original's FP16 weights.

    Layers that were BF16 or FP32 come back as FP16.

    Args:
        source: a folder that ``convert`` made.
        target: folder to make; must not exist.
        progress: is told of bytes read.

    Raises:
        CheckpointError: the source holds no planes, or damaged ones.
        OSError: as in ``convert``.
    """
    config = read_config(source)
    weights = weights_of(read_weights(source))
    modules = [name.removesuffix(".weight") for name, weight in weights.items() if len(weight.parts) == 2]
    if not modules:
        raise CheckpointError(f"{source} holds no planes: it is a plain checkpoint already, or a quantised one")
    check_target(source, target, _nbytes(weights))
    config.pop("quantization_config", None)
    digests = rewrite(source, target, weights, frozenset(), config, progress)
    return Report(modules, {}, [], 0, _nbytes(weights), digests)


def _nbytes(weights: Mapping[str, Weight]) -> int:
    return sum(weight.nbytes for weight in weights.values())


def _require_plain(source: Path, config: Mapping[str, Any]) -> None:
    inner = config.get("text_config")
    for part in (config, inner if isinstance(inner, dict) else {}):
        if found := part.get("quantization_config") or part.get("compression_config"):
            method = found.get("quant_method") if isinstance(found, dict) else found
            raise CheckpointError(
                f"{source} is quantised already ({method}); convert the original FP16 or BF16 checkpoint"
            )
