"""The fixtures that every folder of tests may use, and what holds for the processes that tests start."""

import signal

from tests.servers import moto, moto_bucket

__all__ = ["moto", "moto_bucket"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background makes them deaf to Ctrl-C, and with them every process that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
