"""The fixtures that every folder of tests may use, and what holds for the processes that tests start."""

import signal

from hypothesis import HealthCheck, settings

from tests.quick_tests import pytest_collection_finish, pytest_collection_modifyitems, pytest_runtest_call, pytest_runtest_setup
from tests.servers import moto, moto_bucket

__all__ = [
    "moto",
    "moto_bucket",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_runtest_call",
    "pytest_runtest_setup",
]

# How long an example takes, or the drawing of one, says more of what else the machine does than of the code.
settings.register_profile("any machine", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
settings.register_profile("quick", parent=settings(), max_examples=20)  # `make check`; `make test` tries a hundred

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background makes them deaf to Ctrl-C, and with them every process that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
