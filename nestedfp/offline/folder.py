"""A checkpoint folder made from another one: it appears under its name when it is whole."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from typing import Any

from nestedfp.checkpoint import INDEX_NAME, CheckpointError, fingerprint, read_object

# Weights in other forms: of the original, and of no use beside the new ones.
_OTHER_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx")
ROOM_BYTES = 16 << 20  # for headers and companions


def check_target(source: Path, target: Path, nbytes: int) -> None:
    """See whether the target can be made, before the shards are read, which takes minutes.

    Raises:
        CheckpointError: it exists, is inside the source or a file, or its disk has no room for ``nbytes``.
    """
    if os.path.lexists(target):
        raise CheckpointError(f"{target} exists; name a folder that does not, or remove it")
    there = next(parent for parent in target.absolute().parents if parent.exists())
    if not there.is_dir():
        raise CheckpointError(f"{target}: expected a folder to make it in, and {there} is a file; name another target")
    if target.resolve().is_relative_to(source.resolve()):
        raise CheckpointError(f"{target} is inside {source}; name a folder elsewhere")
    free = shutil.disk_usage(there).free
    if free < nbytes + ROOM_BYTES:
        raise CheckpointError(
            f"{target}: it needs {(nbytes + ROOM_BYTES) / 1e9:.2f} GB and the disk has {free / 1e9:.2f} GB free; make room, or "
            "name a target on another disk"
        )


@contextmanager
def new_folder(source: Path, target: Path) -> Iterator[Path]:
    """Make a hidden folder beside the target, which becomes the target at the end of the block; an exception removes it.

    Raises:
        CheckpointError: the source has changed meanwhile.
        OSError: the folder cannot be made, or somebody else has made the target meanwhile.
    """
    before = fingerprint(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    made.chmod(0o755)
    try:
        yield made
        if fingerprint(source) != before:
            raise CheckpointError(f"{source}: it has changed while it was being read; run the command again")
        made.rename(target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def write_rest(source: Path, made: Path, config: Mapping[str, Any], places: Mapping[str, str], nbytes: int) -> None:
    """Write all but the shards: companions, index, config.json.

    Args:
        places: the shard of each tensor.
        nbytes: of all tensors.
    """
    _copy_companions(source, made)
    if (source / INDEX_NAME).is_file():
        index = read_object(source / INDEX_NAME)
        if isinstance(sizes := index.get("metadata"), dict) and "total_size" in sizes:
            sizes["total_size"] = nbytes
        index["weight_map"] = dict(sorted(places.items()))
        (made / INDEX_NAME).write_text(json.dumps(index, indent=2), encoding="utf-8")
    (made / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _copy_companions(source: Path, made: Path) -> None:
    """Copy all that is no weight: files, and the folders that a model of vectors or a tokenizer has beside them."""
    for file in source.iterdir():
        if file.is_file() and file.suffix not in _OTHER_WEIGHTS and file.name not in ("config.json", INDEX_NAME):
            shutil.copy2(file, made / file.name)
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
            shutil.copytree(source / folder, made / folder, dirs_exist_ok=True)
