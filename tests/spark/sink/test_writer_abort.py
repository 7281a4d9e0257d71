"""What an abort of Spark's deletes: nothing that a commit may have chosen."""

from __future__ import annotations

import asyncio
from pathlib import Path

from segments.bucket.layout import staged_rows_key
from segments.object_store.directory import DirectoryObjectStore
from spark.sink.options import parse_sink_options
from spark.sink.staged_files import encode_file
from spark.sink.staging import StagedByTask, upload
from spark.sink.writer import abort

WRITE = "0f" * 16


def test_rows_stay_where_every_task_was_done_since_the_marker_of_a_commit_that_failed_may_still_land(tmp_path: Path) -> None:
    async def test() -> None:
        store = await DirectoryObjectStore.open(tmp_path)
        key = staged_rows_key(WRITE, 0, 1, "0" * 16, 0)
        file, body = encode_file(key, [])
        await upload(store, key, body)
        options = parse_sink_options({"brokers": "http://b:8080", "bucket": f"file://{tmp_path}", "topic": "orders"})
        done = StagedByTask(0, WRITE, "query q", 0, (file,))

        async def stays() -> bool:
            return bool((await store.list("spark/", start_after="", limit=10)).objects)

        await abort(options, [done])
        assert await stays()
        await abort(options, [None, done])
        assert not await stays()
        await store.close()

    asyncio.run(test())


def test_an_abort_before_any_task_was_done_makes_no_request() -> None:
    options = parse_sink_options({"brokers": "http://b:8080", "bucket": "file:///nowhere", "topic": "orders"})
    asyncio.run(abort(options, [None, None]))
    asyncio.run(abort(options, []))
