"""Arguments that the scripts of this folder share: files and folders that must be there and whole, asked for before anything
is loaded or made.
"""

from argparse import ArgumentTypeError
from pathlib import Path

from models.text import TextError, read_lines


def text_file(text: str) -> Path:
    """A file with text; for ``argparse``, whose message ends the script."""
    path = Path(text)
    if not path.is_file():
        raise ArgumentTypeError(f"expected a file with text, .txt or .txt.xz, got {text!r}: no such file")
    try:
        # Training would come to the second file only when it has made its folder and learnt its tokenizer.
        read_lines(path)
    except TextError as error:
        raise ArgumentTypeError(str(error)) from error
    return path


def checkpoint(text: str) -> Path:
    """A folder with a model and its tokenizer; likewise. A name of a model hub is none: nothing is fetched."""
    path = Path(text)
    for name in ("config.json", "tokenizer.json"):
        if not (path / name).is_file():
            raise ArgumentTypeError(
                f"expected the folder of a checkpoint, such as models/fairytales-8m, got {text!r}: no {name} in it"
            )
    return path
