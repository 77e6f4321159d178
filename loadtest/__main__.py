"""``python -m loadtest``."""

import signal
import sys

from loadtest.cli import main

signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the service that we started is stopped
sys.exit(main())
