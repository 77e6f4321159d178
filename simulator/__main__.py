"""``python -m simulator``: a simulation; with a command's name as the first word, that command."""

import importlib
import sys

COMMANDS = {
    "fit": "simulator.fit.fit",
}


def main(words: list[str]) -> int:
    """Run the command that the words name; returns its exit status."""
    if words and words[0] in COMMANDS:
        status: int = importlib.import_module(COMMANDS[words[0]]).main(words[1:])
        return status
    from simulator import run

    return run.main(words)


if __name__ == "__main__":  # worker processes import this file too
    sys.exit(main(sys.argv[1:]))
