"""``python -m simulator``: a simulation; with ``fit`` as the first word, the fit of an engine's table."""

import sys


def main(words: list[str]) -> int:
    """Run the command that the words name; returns its exit status."""
    if words and words[0] == "fit":
        from simulator.fit import fit

        return fit.main(words[1:])
    from simulator import run

    return run.main(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
