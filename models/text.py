"""From a book file to a stream of token ids.

A book file has one paragraph a line; an empty line ends a book. Paragraphs are grouped into passages of a page or so,
and the stream is `EOS passage EOS passage ... EOS`, the paragraphs of a passage joined by one newline. The end token
between passages is what lets the model finish an answer by itself.
"""

import lzma
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer

END_TOKEN = "<|endoftext|>"  # before, between and after passages: both bos and eos
PASSAGE_CHARS = (800, 2400)  # a passage closes at the first paragraph end past a length drawn from this range


class Stream(NamedTuple):
    """A tokenised text."""

    ids: torch.Tensor  # (tokens,) int64
    text_bytes: int  # UTF-8 bytes of the passages behind `ids`, end tokens not counted


class TextError(ValueError):
    """A text cannot be used; the message is one readable line."""


def read_lines(path: Path) -> list[str]:
    """The lines of a .txt or .txt.xz file, without their ends.

    Raises:
        TextError: it cannot be read, or there is no text in it.
    """
    try:
        raw = path.read_bytes()
        lines = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode("utf-8").splitlines()
    except OSError as error:
        raise TextError(f"{path}: cannot be read: {error.strerror}") from error
    except lzma.LZMAError as error:
        raise TextError(
            f"{path}: expected a whole .xz file, got a damaged one ({error}); copy it anew, or give the text unpacked"
        ) from error
    except UnicodeDecodeError as error:
        got = f"byte {error.object[error.start]:#04x} at {error.start:,}"
        raise TextError(f"{path}: expected UTF-8 text, got {got}; convert the file") from error
    if not any(lines):
        raise TextError(f"{path}: no text in the file; expected one paragraph a line")
    return lines


def passages(lines: list[str], seed: int = 0) -> Iterator[str]:
    """Groups consecutive paragraphs of one book. The seed draws the lengths, so a file is always cut the same way."""
    draw = random.Random(seed)
    group: list[str] = []
    room = draw.randint(*PASSAGE_CHARS)
    for line in [*lines, ""]:
        if line:
            group.append(line)
            room -= len(line) + 1
        if group and (room <= 0 or not line):
            yield "\n".join(group)
            group, room = [], draw.randint(*PASSAGE_CHARS)


def encode(tokenizer: Tokenizer, lines: list[str]) -> Stream:
    """Tokenises a text into one stream with end tokens between its passages."""
    end = tokenizer.token_to_id(END_TOKEN)
    if end is None:
        raise ValueError(f"the tokenizer has no {END_TOKEN!r} token; was it made by models.train?")
    texts = list(passages(lines))
    ids = [end]
    for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
        ids.extend(encoding.ids)
        ids.append(end)
    return Stream(torch.tensor(ids, dtype=torch.int64), sum(len(text.encode("utf-8")) for text in texts))
