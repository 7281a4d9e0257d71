"""The fixtures that every folder of tests may use, and what holds for the processes that tests start."""

import signal

from hypothesis import HealthCheck, settings

from tests.kit.quick_tests import (
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_ignore_collect,
    pytest_runtest_call,
    pytest_runtest_setup,
)
from tests.kit.servers import moto, moto_bucket
from tests.kit.spark.session import java, spark
from tests.kit.stuck_tests import pytest_runtest_protocol
from tests.kit.workers import pytest_collection, pytest_xdist_make_scheduler

__all__ = [
    "java",
    "moto",
    "moto_bucket",
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_ignore_collect",
    "pytest_runtest_call",
    "pytest_runtest_protocol",
    "pytest_runtest_setup",
    "pytest_xdist_make_scheduler",
    "spark",
]

# How long an example takes, or the drawing of one, says more of what else the machine does than of the code.
settings.register_profile(
    "ordinary", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=25
)
settings.load_profile("ordinary")
settings.register_profile("thorough", parent=settings(), max_examples=200)  # `make test-thorough`

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background makes them deaf to Ctrl-C, and with them every process that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
