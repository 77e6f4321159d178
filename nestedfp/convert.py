"""``nestedfp-convert SOURCE TARGET``: turn an FP16 or BF16 Hugging Face checkpoint into a NestedFP one of the same size.

Every tensor is checked before the first one is written, the result appears under its name only when it is complete and holds
every tensor of the source, and one shard is in memory at a time. Tensors that are not nested are copied as they are.

What becomes of a linear layer's ``<name>.weight`` (nestedfp/format.py has the format):
    all |w| <= 1.75          -> ``<name>.weight_upper`` and ``<name>.weight_lower``
    up to 0.1 % beyond       -> stays ``<name>.weight`` and is nested, with its outlier list, while it loads
    more beyond              -> stays ``<name>.weight`` and is listed under ``ignore``, with the layers it is fused with
    a NaN or an infinity, in FP16, in this or any other weight -> the checkpoint is refused
"""

import argparse
import errno
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from nestedfp.cast import cast_report
from nestedfp.checkpoint import (
    FLOATS,
    INDEX_NAME,
    PLANES,
    CheckpointError,
    Stored,
    fingerprint,
    listed,
    read_config,
    read_object,
    read_tensors,
    read_weights,
)
from nestedfp.eligible import is_latent_up, is_no_linear, is_router
from nestedfp.format import FORMAT_VERSION
from nestedfp.nested_weight import NestedWeight, nest
from nestedfp.values import BUFFERS, fault, stream

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
    inexact_casts: int = 0  # weights of any tensor that FP16 cannot hold exactly
    bytes_read: int = 0

    def summary(self) -> str:
        """Return one line for a person."""
        text = f"{len(self.nested)} layers nested, {len(self.listed)} with outlier lists, {len(self.plain)} plain"
        if self.inexact_casts:
            text += f"; {self.inexact_casts} weights are rounded by the cast to FP16"
        return text


def is_eligible(name: str, stored: Stored, include: re.Pattern[str]) -> bool:
    """Whether a tensor is the weight of a layer to nest: its name matches, it is a matrix, and none that never is nested."""
    module = name.removesuffix(".weight")
    never = is_router(module) or is_latent_up(module) or is_no_linear(module)
    return bool(include.search(name)) and module != name and len(stored.shape) == 2 and not never


def classify(tensors: Mapping[str, Stored], include: re.Pattern[str], report: Report) -> None:
    """Read every weight once and fill ``report``: which layers can be nested.

    Raises:
        CheckpointError: for a NaN, an infinity or a value beyond FP16's range in any weight, or an unreadable shard.
    """
    names = [name for name, stored in tensors.items() if stored.dtype in FLOATS and not name.endswith(BUFFERS)]
    for name, tensor in stream(tensors, names):
        if found := fault(tensor):
            raise CheckpointError(f"{tensors[name].shard}: {name}: {found}; convert a checkpoint that FP16 can hold")
        report.bytes_read += tensor.nbytes
        if tensor.dtype != torch.float16:
            counts = cast_report(tensor)
            report.inexact_casts += counts.flushed + counts.rounded
        if not is_eligible(name, tensors[name], include):
            continue
        module = name.removesuffix(".weight")
        result = nest(tensor.to(torch.float16))
        if not isinstance(result, NestedWeight):
            report.plain.append(module)
        elif result.outliers:
            report.listed[module] = result.outliers
        else:
            report.nested.append(module)


def leave_out(tensors: Mapping[str, Stored], include: re.Pattern[str], report: Report) -> None:
    """Note every matrix that the user's ``include`` leaves out, so that it is not nested while it loads either.

    Experts are left alone: no engine nests them.
    """
    for name, stored in tensors.items():
        candidate = name.endswith(".weight") and ".experts." not in name and len(stored.shape) == 2
        if candidate and not is_eligible(name, stored, include):
            report.excluded.append(name.removesuffix(".weight"))


def _keep_fused_together(report: Report) -> list[str]:
    """Make plain what is fused with a plain layer; return these."""
    moved = []
    for group in FUSED:
        for module in [*report.plain, *report.excluded]:
            stem, _, leaf = module.rpartition(".")
            if leaf not in group:
                continue
            for sibling in (f"{stem}.{name}" if stem else name for name in group):
                if sibling in report.nested:
                    report.nested.remove(sibling)
                elif report.listed.pop(sibling, None) is None:
                    continue
                report.plain.append(sibling)
                moved.append(sibling)
    return moved


def _require_some(source: Path, tensors: Mapping[str, Stored], include: re.Pattern[str], report: Report) -> None:
    fused = _keep_fused_together(report)
    if report.nested or report.listed:
        return
    matching = [name for name in tensors if include.search(name)]
    never = sum(not is_eligible(name, tensors[name], include) for name in matching)
    reasons = Counter(
        {
            f"fused with layers that stay plain ({' or '.join(', '.join(group) for group in FUSED)} go together)": len(
                fused
            ),
            "with too many weights beyond 1.75": len(report.plain) - len(fused),
            "not matrices of linear layers": never,
        }
    )
    why = "; ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
    raise CheckpointError(
        f"{source}: of {len(tensors)} tensors {len(matching)} match {include.pattern!r} and none can be nested"
        + (f": {why}" if why else "")
        + "; see --include"
    )


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
    _check_target(source, target)
    config = read_config(source)
    _require_plain(source, config)
    tensors, before, report = read_weights(source), fingerprint(source), Report()
    if planes := [name for name in tensors if name.endswith(PLANES)]:
        raise CheckpointError(f"{source} holds planes already ({listed(planes)}); convert the original checkpoint")
    pattern = re.compile(DEFAULT_INCLUDE if include is None else include)
    classify(tensors, pattern, report)
    if include is not None:
        leave_out(tensors, pattern, report)
    _require_some(source, tensors, pattern, report)

    # A name that nobody has, so that no folder of the user's or of another conversion is touched.
    partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}.partial")
    partial.mkdir(parents=True)
    try:
        _copy_companions(source, partial)
        nested = set(report.nested)
        expected = {
            name: (stored.shard.name, *kind)
            for old, stored in tensors.items()
            for name, *kind in _becomes(old, stored, nested)
        }
        for shard in sorted({stored.shard for stored in tensors.values()}):
            _convert_shard(
                shard, {name: stored for name, stored in tensors.items() if stored.shard == shard}, partial, nested
            )
        if (source / INDEX_NAME).is_file():
            index = {
                **read_object(source / INDEX_NAME),
                "weight_map": {name: kind[0] for name, kind in expected.items()},
            }
            (partial / INDEX_NAME).write_text(json.dumps(index, indent=2), encoding="utf-8")
        config["quantization_config"] = {
            "quant_method": "nestedfp",
            "format_version": FORMAT_VERSION,
            "ignore": sorted({*report.plain, *report.excluded}),
        }
        config["dtype"] = config["torch_dtype"] = "float16"
        (partial / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        _require_whole(source, before, partial, expected)
        _appear(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return report


def _require_plain(source: Path, config: dict[str, Any]) -> None:
    inner = config.get("text_config")
    for part in (config, inner if isinstance(inner, dict) else {}):
        if found := part.get("quantization_config") or part.get("compression_config"):
            method = found.get("quant_method") if isinstance(found, dict) else found
            raise CheckpointError(
                f"{source} is quantised already ({method}); convert the original FP16 or BF16 checkpoint"
            )


def _copy_companions(source: Path, partial: Path) -> None:
    """Copy all that is no weight: files, and the folders that a model of vectors or a tokenizer has beside them."""
    for file in source.iterdir():
        if file.is_file() and file.suffix != ".safetensors" and file.name not in ("config.json", INDEX_NAME):
            shutil.copy2(file, partial / file.name)
    folders = {"additional_chat_templates"}
    if (modules := source / "modules.json").is_file():
        try:
            folders |= {module["path"] for module in json.loads(modules.read_text(encoding="utf-8"))}
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{modules}: expected a list of modules with a path each, got {error!r}") from None
    for folder in sorted(folders - {""}):
        if PurePosixPath(folder).name != folder or folder == "..":
            raise CheckpointError(f"{modules}: expected the name of a folder beside it, got {folder!r}")
        if (source / folder).is_dir():
            shutil.copytree(source / folder, partial / folder)


def _becomes(name: str, stored: Stored, nested: set[str]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return name, type and shape of what a tensor of the source becomes."""
    module = name.removesuffix(".weight")
    if module == name or module not in nested:
        return [(name, stored.dtype, stored.shape)]
    return [(module + plane, "U8", stored.shape) for plane in PLANES]


def _convert_shard(shard: Path, held: Mapping[str, Stored], folder: Path, nested: set[str]) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in stream(held, held):
        names = [made for made, *_ in _becomes(name, held[name], nested)]
        if len(names) == 1:
            tensors[name] = tensor
            continue
        result = nest(tensor.to(torch.float16))
        if not isinstance(result, NestedWeight) or result.outliers:
            raise CheckpointError(f"{shard}: {name} has changed while it was being converted; convert again")
        tensors.update(zip(names, (result.upper, result.lower), strict=True))
    save_file(tensors, folder / shard.name, metadata={"format": "pt"})


def _require_whole(source: Path, before: str, partial: Path, expected: Mapping[str, tuple[Any, ...]]) -> None:
    """Compare what was written with what the source holds."""
    found = {name: (stored.shard.name, stored.dtype, stored.shape) for name, stored in read_tensors(partial).items()}
    if fingerprint(source) != before or found != expected:
        wrong = [name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)]
        raise CheckpointError(
            f"{source}: it has changed while it was being converted, or the disk lost what was written"
            + (f" ({listed(wrong)})" if wrong else "")
            + "; convert again"
        )


def _appear(partial: Path, target: Path) -> None:
    try:
        partial.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise CheckpointError(f"{target} was made by somebody else meanwhile; it was left alone") from None
        raise


def _check_target(source: Path, target: Path) -> None:
    """See whether the target can be made, before the shards are read, which takes minutes."""
    if os.path.lexists(target):
        raise CheckpointError(f"{target} exists; name a folder that does not, or remove it")
    there = next(parent for parent in target.absolute().parents if parent.exists())
    if not there.is_dir():
        raise CheckpointError(f"{target}: expected a folder to make it in, and {there} is a file; name another target")
    if target.resolve().is_relative_to(source.resolve()):
        raise CheckpointError(f"{target} is inside {source}; name a folder elsewhere")


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
    except SafetensorError as error:
        print(f"error: {args.target}: cannot be written: {error}", file=sys.stderr)
        return 2
    seconds = time.monotonic() - began_s
    print(f"{args.target}: {report.summary()}; {report.bytes_read / 1e9:.2f} GB of weights in {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
