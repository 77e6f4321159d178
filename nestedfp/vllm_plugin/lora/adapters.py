"""LoRA adapters: their folders are looked at before the engine loads them, which it may do in the middle of a step.

vLLM would leave out what an adapter has for a layer that the model does not have, cut or fill a matrix of another shape, unpickle,
and end the engine where a file is missing. It keeps an adapter by its number, and prefix cache blocks by its name.
"""

import functools
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nestedfp.checkpoint import CheckpointError, listed, read_header, read_object, read_weights

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Each matrix of an adapter: its dimension beside the rank, and the one of the layer's weight [n, k] that must be as large.
SIDES = {"lora_A": (1, 1), "lora_B": (0, 0), "lora_embedding_A": (1, 0), "lora_embedding_B": (0, 1)}


class Adapters:
    """The adapters that a process of one engine has been given.

    Args:
        config: vLLM's, of the engine.
    """

    def __init__(self, config: Any) -> None:
        model, self._shapes = Path(config.model_config.model), {}
        if model.is_dir() and config.load_config.load_format != "dummy":
            self._shapes = layer_shapes(model)
        self._max_rank = config.lora_config.max_lora_rank
        self._taken: dict[tuple[str, int, str], tuple[int, int] | None] = {}

    def take(self, adapter: Any) -> None:
        """Look at an adapter, a ``LoRARequest``, once.

        Raises:
            ValueError: it cannot be served, or is another one than its name or number stood for.
        """
        name, number, path = known = adapter.lora_name, adapter.lora_int_id, adapter.lora_path
        written = _written(path)
        if known in self._taken and written in (None, self._taken[known]):
            return
        for other, its in self._taken.items():
            if name == other[0] and path == other[2] and written != its:
                raise ValueError(
                    f"adapter {name!r} of {path}: its weights have changed since this engine loaded them, and blocks of the prefix "
                    "cache are from those; give the new ones a name of their own"
                )
            if number == other[1] or (name == other[0] and path != other[2]):
                raise ValueError(
                    f"adapter {name!r} ({number}) of {path}: {other[0]!r} ({other[1]}) stands for {other[2]} in this engine; "
                    "give each a name and a number of its own"
                )
        if adapter.load_inplace:
            raise ValueError(
                f"adapter {name!r}: load_inplace=True would leave blocks of the one before in the prefix cache; give the new one a "
                "name of its own"
            )
        check(Path(path).expanduser(), self._shapes, self._max_rank)
        self._taken[known] = written


def check(folder: Path, shapes: Mapping[str, set[tuple[int, ...]]], max_rank: int) -> None:
    """Refuse an adapter that vLLM cannot load whole. Reads headers only.

    Args:
        shapes: of the model's weights, by ``tail`` of their layer; empty: they are not known.
        max_rank: vLLM's ``max_lora_rank``.

    Raises:
        CheckpointError: with the folder, what was expected and what to do.
    """
    if not (folder / WEIGHTS).is_file() or not (folder / CONFIG).is_file():
        found = "only pickled weights" if (folder / "adapter_model.bin").is_file() else "not both of them"
        raise CheckpointError(
            f"{folder}: expected an adapter's {CONFIG} and {WEIGHTS}, found {found}; save the adapter with PEFT as safetensors "
            "into a local folder"
        )
    rank = read_object(folder / CONFIG).get("r")
    if type(rank) is not int or not 0 < rank <= max_rank:
        raise CheckpointError(
            f"{folder}: the adapter's rank is {rank}, expected 1 to {max_rank}; set max_lora_rank to its rank or more"
        )
    layers: dict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for name, entry in read_header(folder / WEIGHTS)[0].items():
        layer, _, side = name.removesuffix(".weight").rpartition(".")
        if side != "base_layer":  # the model's own
            layers[layer.removeprefix("base_model.model.")][side] = tuple(entry["shape"])
    if shapes and (unknown := [layer for layer in layers if tail(layer) not in shapes]):
        raise CheckpointError(
            f"{folder}: the adapter changes {listed(unknown)}, which the model does not have; take the model that it was made for"
        )
    for layer, sides in layers.items():
        if sides.keys() not in ({"lora_A", "lora_B"}, {"lora_embedding_A", "lora_embedding_B"}):
            raise CheckpointError(
                f"{folder}: {layer} has {sorted(sides)}, expected lora_A and lora_B; save the adapter with PEFT again"
            )
        fits = any(_fits(sides, weight, rank) for weight in shapes.get(tail(layer), ()))
        if shapes and not fits:
            raise CheckpointError(
                f"{folder}: {layer} has {sides}, which is not of rank {rank} and of the model's {sorted(shapes[tail(layer)])}; "
                "take the model that it was made for"
            )


def _written(path: str) -> tuple[int, int] | None:
    """When an adapter's weights were written, and how long they are; None: they are not there."""
    try:
        found = (Path(path).expanduser() / WEIGHTS).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _fits(sides: Mapping[str, tuple[int, ...]], weight: tuple[int, ...], rank: int) -> bool:
    return len(weight) == 2 and all(
        len(shape) == 2 and shape[SIDES[side][0]] == weight[SIDES[side][1]] and shape[1 - SIDES[side][0]] == rank
        for side, shape in sides.items()
    )


@functools.cache
def layer_shapes(model: Path) -> dict[str, set[tuple[int, ...]]]:
    """Return the shapes of a checkpoint's weights by the ``tail`` of their layer."""
    from nestedfp.offline.reading import weights_of

    shapes: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for name, weight in weights_of(read_weights(model)).items():
        shapes[tail(name.removesuffix(".weight"))].add(weight.shape)
    shapes["lm_head"] |= shapes["embed_tokens"]  # which it may be tied to
    return dict(shapes)


def tail(layer: str) -> str:
    """Return what checkpoints and adapters name alike: ``layers.3.mlp.up_proj``, whatever stands before; the last word else."""
    found = re.search(r"[^.]+\.\d+\..+", layer)
    return found[0] if found else layer.rpartition(".")[2]
