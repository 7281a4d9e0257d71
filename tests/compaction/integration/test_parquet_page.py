"""docs/guides/parquet.md: its program reads history as it is, with pyarrow alone."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from metadata.model import Offset, Partition, TopicId, TopicPartition
from segments.bucket.layout import history_file_key, history_file_name, manifest_key
from segments.history.manifest import Manifest, encode_manifest
from segments.object_store.directory import DirectoryObjectStore
from tests.kit.compaction.kept import columns_of, record
from tests.kit.segments.history_files import write_history

ORDERS = TopicId("a" * 32)
PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "parquet.md").read_text()


async def lay_version(store: DirectoryObjectStore, partition: int, version: int, *bounds: int, log_start: int = 0) -> None:
    """A manifest that names a file of the offsets between each two bounds."""
    topic_partition = TopicPartition(ORDERS, Partition(partition))
    files = []
    for base, end in pairwise(bounds):
        name = history_file_name(Offset(base), Offset(end - 1), version, f"{base:016x}")
        columns = columns_of([record(offset) for offset in range(base, end)])
        written = write_history([columns], name=name, topic="orders", partition=partition)
        await store.create(history_file_key("orders", topic_partition, name), [memoryview(written.body)])
        files.append(written.file)
    manifest = Manifest(
        ORDERS,
        topic_partition.partition,
        version,
        "w",
        0,
        "compaction",
        Offset(log_start),
        Offset(bounds[-1] if bounds else 0),
        tuple(files),
    )
    await store.create(manifest_key("orders", topic_partition, version), [encode_manifest(manifest)])


async def lay_bucket(root: Path) -> None:
    store = await DirectoryObjectStore.open(root, make_root=True)
    await lay_version(store, 0, 1, 0, 4, 6)
    await lay_version(store, 0, 2, 0, 6)  # the two are one, and still there
    await lay_version(store, 1, 9, 0, 5)
    await lay_version(store, 1, 10, 5, 8, log_start=6)  # another number of digits
    await lay_version(store, 2, 1)
    await store.create(f"topics/orders/{ORDERS}/_log/topic-00000000000000000001.json", [b"{}"])
    await store.close()


def test_the_program_reads_each_record_that_a_manifest_has_once(tmp_path: Path) -> None:
    asyncio.run(lay_bucket(tmp_path))
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    program, replaced = re.subn(
        r'Path\("data/bucket/topics/orders/\w+"\)', f"Path({str(tmp_path / 'topics/orders' / ORDERS)!r})", program
    )
    assert replaced == 1
    names: dict[str, Any] = {}
    exec(program, names)  # what users are shown
    orders: pa.Table = names["orders"]
    found = sorted(zip(orders["partition"].to_pylist(), orders["offset"].to_pylist(), strict=True))
    assert found == [(0, offset) for offset in range(6)] + [(1, 6), (1, 7)]
