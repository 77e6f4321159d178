"""A text as windows of token ids."""

import lzma
from collections.abc import Callable
from pathlib import Path

from nestedfp.checkpoint import CheckpointError

UNKNOWN_SHARE = 0.01  # of the tokens that may stand for what a tokenizer does not know


def read_text(path: Path) -> str:
    """Read a .txt or .txt.xz file in UTF-8.

    Raises:
        CheckpointError: it is none, or holds no text.
    """
    raw = path.read_bytes()
    try:
        text = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode("utf-8")
    except lzma.LZMAError as error:
        raise CheckpointError(f"{path}: expected a whole .xz file ({error}); copy it again, or unpack it") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{path}: expected UTF-8 text, got byte {raw[error.start]:#04x} at {error.start:,}; convert it"
        ) from None
    if not text.strip():
        raise CheckpointError(f"{path}: no text in the file")
    return text


def windows(
    path: Path, encode: Callable[[str], list[int]], unknown: int | None, vocabulary: int, context: int, tokens: int
) -> list[list[int]]:
    """Return the first ``tokens`` of a text in windows of ``context`` that do not overlap; at least one.

    Args:
        path: the text.
        encode: the tokenizer.
        unknown: the id of what it does not know; None: it knows every byte.
        vocabulary: ids that the model knows.

    Raises:
        CheckpointError: the text is too short, or the tokenizer does not fit the text or the model.
    """
    text = read_text(path)
    ids = encode(text[: 16 * (tokens + context)])  # no tokenizer takes so many characters for a token
    if ids and max(ids) >= vocabulary:
        raise CheckpointError(
            f"{path}: the tokenizer made the token {max(ids)} of it, the model knows {vocabulary}: tokenizer and config.json are "
            "not of one model; copy both again"
        )
    if unknown is not None and ids.count(unknown) > UNKNOWN_SHARE * len(ids):
        raise CheckpointError(
            f"{path}: the tokenizer does not know {ids.count(unknown) / len(ids):.0%} of it; take a text of the model's language"
        )
    count = min(tokens, len(ids)) // context
    if not count:
        raise CheckpointError(
            f"{path}: {len(ids)} tokens of {tokens} asked for make no window of {context}; lower --context"
        )
    return [ids[i * context : (i + 1) * context] for i in range(count)]
