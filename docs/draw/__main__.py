"""Draws the plots of the documents into docs/pictures, from simulations; the diagrams there are SVG files as they are."""

import argparse
from collections.abc import Sequence

from docs.draw import burst, scaling


def main(words: Sequence[str] | None = None) -> None:
    """Draw each and say where it is."""
    argparse.ArgumentParser(
        prog="python -m docs.draw", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(words)
    for picture in (burst, scaling):
        print(f"drawn: {picture.draw()}", flush=True)


if __name__ == "__main__":
    main()
