"""Draws the pictures of the documents, all of them, into docs/pictures.

Those of the control room are taken from a running service: python -m docs.draw.control_room --help.
"""

import argparse
from collections.abc import Sequence

from docs.draw import architecture, bits, burst, scaling


def main(words: Sequence[str] | None = None) -> None:
    """Draw each and say where it is."""
    argparse.ArgumentParser(
        prog="python -m docs.draw", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(words)
    for picture in (bits, architecture, burst, scaling):
        print(f"drawn: {picture.draw()}", flush=True)


if __name__ == "__main__":
    main()
