"""Which worker runs which test, under `pytest -n 4 --dist loadscope`: each gets its next test when it has done one.

All tests that share the Spark of their process (`tests/kit/spark/session.py`) go to one worker: a JVM costs ten seconds of a core,
and is warm after the first test. So do those that share what is built for the image, minutes of a core. (`--dist loadgroup`, which
is for this, does nothing with pytest 9.2 and xdist 3.8: it changes a name of each test that is not read any more.)

And what is imported and collected is set aside from the garbage collector, here and where there are no workers.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Who schedules knows tests by their names alone, not by their fixtures. What is missing here starts another JVM.
WITH_SPARK = tuple(
    f"tests/{name}.py"
    for name in (
        "spark/backfill/test_backfill_on_spark",
        "spark/integration/test_cross_check",
        "spark/parquet/test_read",
        "spark/replay/test_replay",
        "spark/sink/test_writer",
        "spark/source/test_reader",
        "spark/source/test_stream_source",
        "tidelog/pipelines/test_pipeline_streams",
        "tidelog/pipelines/test_pipelines",
    )
)
WITH_IMAGE = "tests/deploy/test_built_image.py"


class OneByOne(LoadScopeScheduling):  # type: ignore[misc]  # xdist is not typed throughout
    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(WITH_IMAGE):
            return "image"
        return "spark" if nodeid.startswith(WITH_SPARK) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneByOne | None:
    return OneByOne(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: the garbage collector would look at all of it again and again, now and amid tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
