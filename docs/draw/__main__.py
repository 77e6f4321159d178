"""Draws the plot of the documents into docs/pictures, from a simulation; the diagrams there are SVG files as they are."""

import argparse
from collections.abc import Sequence

from docs.draw import burst


def main(words: Sequence[str] | None = None) -> None:
    """Draw it and say where it is."""
    argparse.ArgumentParser(
        prog="python -m docs.draw", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(words)
    print(f"drawn: {burst.draw()}", flush=True)


if __name__ == "__main__":
    main()
