"""``nestedfp-convert SOURCE TARGET``: turn an FP16 or BF16 Hugging Face checkpoint into a NestedFP one of the same size.

Every shard is checked before the first one is written, the result appears under its name only when it is complete, and
one shard is in memory at a time. Embeddings, lm_head, norms, routers and experts stay as they are.

What becomes of a linear layer's ``<name>.weight`` (nestedfp/format.py has the format):
    all |w| <= 1.75          -> ``<name>.weight_upper`` and ``<name>.weight_lower``
    up to 0.1 % beyond       -> stays ``<name>.weight`` and is nested, with its outlier list, while it loads
    more beyond              -> stays ``<name>.weight`` and is listed under ``ignore``, with the layers it is fused with
    a NaN or an infinity     -> the checkpoint is refused
"""

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from nestedfp.cast import cast_report
from nestedfp.checkpoint import INDEX_NAME, CheckpointError, list_shards, verify_shards
from nestedfp.eligible import is_latent_up, is_router
from nestedfp.format import FORMAT_VERSION
from nestedfp.nested_weight import NestedWeight, nest

# A projection inside a decoder layer, but no expert: experts have kernels of their own in vLLM.
DEFAULT_INCLUDE = r"(^|\.)layers\.\d+\.(?!.*experts).*_proj\.weight$"
# Layers that engines fuse must stay plain together.
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@dataclass
class Report:
    """What happened to the linear layers of a checkpoint, by module name."""

    nested: list[str] = field(default_factory=list)
    listed: dict[str, int] = field(default_factory=dict)  # module -> weights beyond 1.75
    plain: list[str] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)  # the user's --include leaves them out
    inexact_casts: int = 0  # BF16 weights that FP16 cannot hold exactly
    bytes_read: int = 0

    def summary(self) -> str:
        """Return one line for a person."""
        text = f"{len(self.nested)} layers nested, {len(self.listed)} with outlier lists, {len(self.plain)} plain"
        if self.inexact_casts:
            text += f"; {self.inexact_casts} BF16 weights were rounded by the cast to FP16"
        return text


def to_fp16(name: str, tensor: torch.Tensor, report: Report) -> torch.Tensor:
    """Cast a weight to FP16, counting what the cast changes.

    Raises:
        CheckpointError: when a finite value overflows.
    """
    if tensor.dtype == torch.float16:
        return tensor
    counts = cast_report(tensor)
    if counts.overflowed:
        raise CheckpointError(
            f"{name}: {counts.overflowed} values beyond FP16's 65504 overflow in the cast from {tensor.dtype}"
        )
    report.inexact_casts += counts.flushed + counts.rounded
    return tensor.to(torch.float16)


def is_eligible(name: str, include: re.Pattern[str]) -> bool:
    """Whether a tensor is the weight of a layer to nest: its name matches and it is none that never is."""
    module = name.removesuffix(".weight")
    return bool(include.search(name)) and not is_router(module) and not is_latent_up(module)


def classify(shards: list[Path], include: re.Pattern[str], report: Report) -> None:
    """Read every shard once and fill ``report``: which layers can be nested.

    Raises:
        CheckpointError: for a NaN or an infinity, a weight of a wrong type, or an unreadable shard.
    """
    for name, tensor in _linear_weights(shards, include):
        module = name.removesuffix(".weight")
        if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise CheckpointError(f"{name}: dtype is {tensor.dtype}, expected float16, bfloat16 or float32")
        report.bytes_read += tensor.nbytes
        result = nest(to_fp16(name, tensor, report))
        if not isinstance(result, NestedWeight):
            if result.nonfinite:
                raise CheckpointError(f"{name}: {result.nonfinite} of {tensor.numel()} weights are NaN or infinite")
            report.plain.append(module)
        elif result.outliers:
            report.listed[module] = result.outliers
        else:
            report.nested.append(module)
    _keep_fused_together(report)


def _linear_weights(shards: list[Path], include: re.Pattern[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for shard in shards:
        with safe_open(shard, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dictionary
                if is_eligible(name, include):
                    yield name, file.get_tensor(name)


def leave_out(shards: list[Path], include: re.Pattern[str], report: Report) -> None:
    """Note every matrix that the user's ``include`` leaves out, so that it is not nested while it loads either.

    Experts are left alone: no engine nests them.
    """
    for shard in shards:
        with safe_open(shard, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dictionary
                candidate = name.endswith(".weight") and ".experts." not in name and not is_eligible(name, include)
                if candidate and len(file.get_slice(name).get_shape()) == 2:
                    report.excluded.append(name.removesuffix(".weight"))
    _keep_fused_together(report)


def _keep_fused_together(report: Report) -> None:
    for group in FUSED:
        for module in [*report.plain, *report.excluded]:
            stem, _, leaf = module.rpartition(".")
            if leaf not in group:
                continue
            for sibling in (f"{stem}.{name}" for name in group):
                if sibling in report.nested:
                    report.nested.remove(sibling)
                    report.plain.append(sibling)
                elif sibling in report.listed:
                    del report.listed[sibling]
                    report.plain.append(sibling)


def convert(source: Path, target: Path, include: str | None = None) -> Report:
    """Convert a checkpoint folder.

    Args:
        source: folder with config.json and safetensors shards.
        target: folder to make; must not exist.
        include: regular expression that the names of weights to nest match; all others stay plain FP16, on disk and when
            they are served. None: the projections of decoder layers are nested on disk, other linear layers while they load.

    Raises:
        CheckpointError: when the source cannot be converted; the target does not exist then.
        OSError: when a file cannot be read or written; likewise.
    """
    _check_target(target)
    if not (source / "config.json").is_file():
        raise CheckpointError(f"{source}: no config.json; expected a Hugging Face checkpoint folder")
    config = json.loads((source / "config.json").read_text())
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method")
        raise CheckpointError(f"{source} is quantised already ({method}); convert the original FP16 or BF16 checkpoint")
    verify_shards(source)
    shards, report = list_shards(source), Report()
    pattern = re.compile(DEFAULT_INCLUDE if include is None else include)
    classify(shards, pattern, report)
    if include is not None:
        leave_out(shards, pattern, report)
    if not report.nested and not report.listed:
        raise CheckpointError(f"{source}: no weight that can be nested matches {pattern.pattern!r}; see --include")

    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        for file in source.iterdir():
            if file.is_file() and file.suffix != ".safetensors" and file.name not in ("config.json", INDEX_NAME):
                shutil.copy2(file, partial / file.name)
        weight_map = {
            name: shard.name for shard in shards for name in _convert_shard(shard, partial, set(report.nested))
        }
        if (source / INDEX_NAME).is_file():
            index = json.loads((source / INDEX_NAME).read_text())
            (partial / INDEX_NAME).write_text(json.dumps({**index, "weight_map": weight_map}, indent=2))
        config["quantization_config"] = {
            "quant_method": "nestedfp",
            "format_version": FORMAT_VERSION,
            "ignore": sorted({*report.plain, *report.excluded}),
        }
        config["dtype"] = config["torch_dtype"] = "float16"
        (partial / "config.json").write_text(json.dumps(config, indent=2))
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return report


def _convert_shard(shard: Path, folder: Path, nested: set[str]) -> list[str]:
    tensors: dict[str, torch.Tensor] = {}
    with safe_open(shard, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a dictionary
            tensor = file.get_tensor(name)
            module = name.removesuffix(".weight")
            if module in nested and name.endswith(".weight"):
                result = nest(tensor.to(torch.float16))
                assert isinstance(result, NestedWeight), f"{name} changed while it was being converted"
                tensors[f"{module}.weight_upper"] = result.upper
                tensors[f"{module}.weight_lower"] = result.lower
            else:
                tensors[name] = to_fp16(name, tensor, Report()) if tensor.is_floating_point() else tensor
    save_file(tensors, folder / shard.name, metadata={"format": "pt"})
    return list(tensors)


def _check_target(target: Path) -> None:
    """See whether the target can be made, before the shards are read, which takes minutes."""
    if target.exists():
        raise CheckpointError(f"{target} exists; name a folder that does not, or remove it")
    there = next(parent for parent in target.absolute().parents if parent.exists())
    if not there.is_dir():
        raise CheckpointError(f"{target}: expected a folder to make it in, and {there} is a file; name another target")


def _regular_expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"expected a regular expression, got {text!r}: {error}") from error
    return text


def main(argv: list[str] | None = None) -> int:
    """Command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="nestedfp-convert", description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("source", type=Path, help="folder of the FP16 or BF16 checkpoint")
    parser.add_argument("target", type=Path, help="folder to make")
    parser.add_argument(
        "--include",
        type=_regular_expression,
        help="names of weights to nest (regular expression); all others stay plain FP16 when served, too. Default: the "
        "projections of decoder layers on disk, and whatever else can be nested while it loads",
    )
    args = parser.parse_args(argv)
    began_s = time.monotonic()
    try:
        report = convert(args.source, args.target, args.include)
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = error.filename or args.target  # of a full disk the system names no file
        print(f"error: {where}: cannot be read or written: {error.strerror or error}", file=sys.stderr)
        return 2
    seconds = time.monotonic() - began_s
    print(f"{args.target}: {report.summary()}; {report.bytes_read / 1e9:.2f} GB of weights in {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
