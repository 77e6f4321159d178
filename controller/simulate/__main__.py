"""``python -m controller.simulate``."""

import sys

from controller.simulate.cli import main

if __name__ == "__main__":  # worker processes import this file too
    sys.exit(main())
