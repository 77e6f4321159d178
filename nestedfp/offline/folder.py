"""A checkpoint folder made from another one: it appears under its name when it is whole, and goes on where it was interrupted."""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from nestedfp.checkpoint import INDEX_NAME, CheckpointError, fingerprint, listed, read_object, read_tensors

# Weights in other forms: of the original, and of no use beside the new ones.
_OTHER_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx")
ROOM_BYTES = 16 << 20  # for headers and companions
Kinds = Mapping[str, tuple[str, str, tuple[int, ...]]]  # a tensor's shard, type and shape


def check_target(source: Path, target: Path, nbytes: int) -> None:
    """See whether the target can be made, before the shards are read, which takes minutes.

    Shards that an interrupted run has left need no more room.

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
    done = target.parent.glob(f"{_partial_name(escape(target.name), '*')}/*.safetensors*")
    free = shutil.disk_usage(there).free + sum(file.stat().st_size for file in done)
    if free < nbytes + ROOM_BYTES:
        raise CheckpointError(
            f"{target}: it needs {(nbytes + ROOM_BYTES) / 1e9:.2f} GB and the disk has {free / 1e9:.2f} GB free; make room, or "
            "name a target on another disk"
        )


def _partial_name(name: str, identity: str) -> str:
    return f".{name}.{identity}.partial"


@contextmanager
def partial_folder(source: Path, target: Path, settings: object) -> Iterator[Path]:
    """Make a hidden folder beside the target, or take up the one that an interrupted run with the same settings left.

    It becomes the target at the end of the block. A ``CheckpointError`` within removes it; any other exception leaves it to the
    next run if a shard in it is done.

    Raises:
        CheckpointError: another run is at it; the source has changed meanwhile; the target was made by somebody else.
    """
    before = fingerprint(source)
    identity = sha256(json.dumps([str(source.resolve()), before, settings], sort_keys=True).encode()).hexdigest()[:12]
    partial = target.with_name(_partial_name(target.name, identity))
    partial.mkdir(parents=True, exist_ok=True)
    lock = os.open(partial, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"{target}: another run is making it in {partial.name}; wait for it") from None
        try:
            yield partial
            if fingerprint(source) != before:
                raise CheckpointError(f"{source}: it has changed while it was being read; run the command again")
            os.fsync(lock)
            _appear(partial, target)
        except CheckpointError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        except BaseException:
            if not any(partial.glob("*.safetensors")):
                shutil.rmtree(partial, ignore_errors=True)
            raise
    finally:
        os.close(lock)


def _appear(partial: Path, target: Path) -> None:
    try:
        partial.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise CheckpointError(f"{target} was made by somebody else meanwhile; it was left alone") from None
        raise


def write_rest(source: Path, partial: Path, config: Mapping[str, Any], expected: Kinds, nbytes: int) -> None:
    """Write all but the shards: companions, index, config.json; then compare the shards with what they should hold.

    Raises:
        CheckpointError: for a tensor that is not as ``expected``.
    """
    _copy_companions(source, partial)
    if (source / INDEX_NAME).is_file():
        index = read_object(source / INDEX_NAME)
        if isinstance(sizes := index.get("metadata"), dict) and "total_size" in sizes:
            sizes["total_size"] = nbytes
        index["weight_map"] = {name: shard for name, (shard, *_) in sorted(expected.items())}
        (partial / INDEX_NAME).write_text(json.dumps(index, indent=2), encoding="utf-8")
    (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    found = {name: (stored.shard.name, stored.dtype, stored.shape) for name, stored in read_tensors(partial).items()}
    if found != dict(expected):
        wrong = [name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)]
        raise CheckpointError(f"{partial}: the disk lost what was written ({listed(wrong)}); run the command again")


def _copy_companions(source: Path, partial: Path) -> None:
    """Copy all that is no weight: files, and the folders that a model of vectors or a tokenizer has beside them."""
    for file in source.iterdir():
        if file.is_file() and file.suffix not in _OTHER_WEIGHTS and file.name not in ("config.json", INDEX_NAME):
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
            shutil.copytree(source / folder, partial / folder, dirs_exist_ok=True)
