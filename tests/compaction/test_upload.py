"""A file of history comes to the bucket whole, before it is named, and is taken back only where no manifest will name it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from awscrt.checksums import crc32c

from compaction.upload import discard, take_back_unnamed, upload
from metadata.model import Offset
from segments.bucket.layout import history_file_key, history_file_name
from segments.object_store.interface import Buffer
from tests.kit.compaction.blows import StruckStore
from tests.kit.compaction.compacting import Scene, on_a_bucket
from tests.kit.compaction.kept import small_files
from tests.kit.segments.batches import ORDERS, batch_of

BODY = pa.py_buffer(b"PAR1 and so on")


class Checked(StruckStore):
    """As S3 does it: what comes with a checksum is held against it."""

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        if key.startswith("topics/"):
            assert crc32c == checksum_of(body), f"{key} comes without its checksum, and segments may be deleted for its sake"
        await super().create(key, body, crc32c=crc32c)


def checksum_of(body: Sequence[Buffer]) -> int:
    checksum: int = crc32c(b"".join(bytes(part) for part in body))
    return checksum


def name_for(version: int) -> str:
    return history_file_name(Offset(0), Offset(7), version, "0" * 16)


def test_all_that_takes_the_place_of_segments_is_sent_with_its_checksum() -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(b"v")]})
        store = Checked(scene.store)
        report = await scene.compactor(store=store).tick()
        assert not report.failed
        assert store.count("create", "topics/") == 2

    on_a_bucket(work)


def test_an_upload_whose_answer_was_lost_is_there() -> None:
    async def work(scene: Scene) -> None:
        store = StruckStore(scene.store, at=1, blow="answer lost")
        await upload(scene.context(store=store), "orders", ORDERS, name_for(1), BODY)
        assert store.count("create") == 2
        assert scene.store.content(history_file_key("orders", ORDERS, name_for(1))) == BODY.to_pybytes()

    on_a_bucket(work)


def test_an_uploaded_file_is_deleted_if_the_newest_manifest_has_its_version_and_does_not_name_it() -> None:
    async def work(scene: Scene) -> None:
        manifest = await small_files(scene)
        context = scene.context()
        for version in (1, 2):
            await upload(context, "orders", ORDERS, name_for(version), BODY)
            await take_back_unnamed(context, "orders", ORDERS, name_for(version), version)
        await take_back_unnamed(context, "orders", ORDERS, manifest.files[0].name, 1)
        there = set(scene.store.keys(history_file_key("orders", ORDERS, "")))
        kept = [*(file.name for file in manifest.files), name_for(2)]
        assert there == {history_file_key("orders", ORDERS, name) for name in kept}, "version 2 may still come to name its file"
        await discard(context, "orders", ORDERS, name_for(2))
        assert not scene.store.has(history_file_key("orders", ORDERS, name_for(2)))

    on_a_bucket(work)
