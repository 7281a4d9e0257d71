"""Metadata and bucket must be of one cluster; metadata that were lost are never taken for those of a new one."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gateway.access.settings import AccessSettings
from gateway.broker.broker import Broker
from gateway.cluster.identity import CHECK_INTERVAL_S, SeenClusterId, identify_cluster, watch_identity, what_happened
from gateway.cluster.session_opener import SessionOpener
from gateway.controller.metadata_snapshots import take_snapshot
from gateway.net.ports import reserve_ports
from gateway.process.broker_process import run_broker
from gateway.settings import BrokerSettings
from metadata.backup.restore_state import SkippedSessions, encode_skipped
from metadata.cluster.id_allocation import next_session
from metadata.controller.appointments import Progress, encode_progress
from metadata.errors import Denied, InvalidArgument, Rejected, Unavailable
from metadata.model import Partition, Revision, SegmentSeq, SessionId, TopicId, TopicPartition
from metadata.store.data_directory import DataDirectory
from metadata.store.etcd.store import EtcdStore
from metadata.store.interface import NOW, Delete, DeletePrefix, Put, RangeResult
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from segments.bucket.cluster_record import read_cluster_record, sign_bucket
from segments.bucket.layout import (
    WAL,
    SnapshotPosition,
    appointments_key,
    claim_key,
    segment_key,
    session_prefix,
    snapshot_key,
)
from segments.bucket.markers import begin_restoration
from segments.object_store.instrumented import InstrumentedObjectStore
from segments.object_store.interface import ListPage
from segments.object_store.memory import MemoryObjectStore
from segments.settings import SegmentSettings
from segments.wal.segment_file import SEAL_BYTES
from tests.kit.etcd_server import in_thread, running_etcd, settings
from tests.kit.metadata.faulty_store import FaultyStore, unavailable
from tests.kit.metadata.stores import until
from tests.simulation.virtual_loop import run as virtually
from tests.simulation.virtual_loop import virtual_loop

LAYOUT = KeyLayout()
FREE = "127.0.0.1:0"


def with_parts(tmp_path: Path, test: Callable[[MemoryObjectStore, SqliteStore], Awaitable[None]]) -> None:
    async def main() -> None:
        metadata = SqliteStore(tmp_path / "metadata.sqlite")
        try:
            await test(MemoryObjectStore(), metadata)
        finally:
            await metadata.close()

    asyncio.run(main())


async def identify(bucket: MemoryObjectStore, metadata: SqliteStore, new_id: str = "new") -> str:
    return await identify_cluster(bucket, metadata, LAYOUT, new_id=new_id, now_ms=0)


def test_empty_metadata_and_an_empty_bucket_become_a_new_cluster_and_stay_it(tmp_path: Path) -> None:
    async def test(bucket: MemoryObjectStore, metadata: SqliteStore) -> None:
        assert await identify(bucket, metadata) == "new"
        assert await identify(bucket, metadata, "another") == "new"
        record = await read_cluster_record(bucket)
        assert record is not None
        assert record.cluster_id == "new"

    with_parts(tmp_path, test)


def test_a_first_start_that_was_interrupted_before_it_signed_the_bucket_is_completed(tmp_path: Path) -> None:
    async def test(bucket: MemoryObjectStore, metadata: SqliteStore) -> None:
        await metadata.transact([], [Put(LAYOUT.cluster_id, b"first")])
        assert await identify(bucket, metadata) == "first"

    with_parts(tmp_path, test)


def test_an_empty_bucket_is_none_for_a_cluster_that_has_led(tmp_path: Path) -> None:
    async def test(bucket: MemoryObjectStore, metadata: SqliteStore) -> None:
        await identify(bucket, metadata, "ours")
        await next_session(metadata, LAYOUT)
        empty = MemoryObjectStore("s3://elsewhere/log")
        with pytest.raises(Rejected, match="s3://elsewhere/log is empty, and brokers of cluster ours have written") as refused:
            await identify(empty, metadata)
        assert "--data-dir" in refused.value.hint
        assert await read_cluster_record(empty) is None, "nothing was written"
        assert await identify(MemoryObjectStore(), metadata) == "ours", "who names memory:// knows that it is empty"

    with_parts(tmp_path, test)


def test_two_brokers_that_start_a_cluster_together_do_not_refuse_each_other(tmp_path: Path) -> None:
    class SignedMeanwhile(MemoryObjectStore):
        async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
            found = await super().list(prefix, start_after=start_after, limit=limit)
            if prefix == WAL and await read_cluster_record(self) is None:  # the other one is a step ahead
                await metadata.transact([], [Put(LAYOUT.cluster_id, b"theirs")])
                await sign_bucket(self, "theirs", now_ms=0)
                await next_session(metadata, LAYOUT)
            return found

    metadata = SqliteStore(tmp_path / "metadata.sqlite")

    async def test() -> None:
        assert await identify(SignedMeanwhile("s3://ours/log"), metadata) == "theirs"
        await metadata.close()

    asyncio.run(test())


def test_metadata_and_bucket_of_two_clusters_are_refused_with_both_names(tmp_path: Path) -> None:
    async def test(bucket: MemoryObjectStore, metadata: SqliteStore) -> None:
        await metadata.transact([], [Put(LAYOUT.cluster_id, b"one")])
        await sign_bucket(bucket, "other", now_ms=0)
        with pytest.raises(Rejected, match="belongs to cluster other, but this broker's metadata to cluster one"):
            await identify(bucket, metadata)

    with_parts(tmp_path, test)


def test_empty_metadata_beside_a_clusters_bucket_are_refused_with_the_way_to_restore_them(tmp_path: Path) -> None:
    async def test(bucket: MemoryObjectStore, metadata: SqliteStore) -> None:
        await identify(bucket, metadata, "lost")
        await metadata.transact([], [DeletePrefix(LAYOUT.root)])
        with pytest.raises(Rejected, match="belongs to cluster lost, but the metadata under /tidelog/ are empty") as refused:
            await identify(bucket, metadata)
        assert "tidelog cluster restore" in refused.value.hint
        assert (await metadata.range(LAYOUT.root)).items == ()

    with_parts(tmp_path, test)


def test_records_without_a_cluster_json_are_no_empty_bucket_either(tmp_path: Path) -> None:
    async def test(bucket: MemoryObjectStore, metadata: SqliteStore) -> None:
        await bucket.create(segment_key(SessionId(1), SegmentSeq(0)), [b"records"])
        with pytest.raises(Rejected, match=r"holds records, though no cluster\.json"):
            await identify(bucket, metadata)
        assert await read_cluster_record(bucket) is None

    with_parts(tmp_path, test)


def test_metadata_that_are_older_than_their_copy_on_the_bucket_are_refused(tmp_path: Path) -> None:
    async def test(bucket: MemoryObjectStore, metadata: SqliteStore) -> None:
        await identify(bucket, metadata, "ours")
        for _ in range(5):
            await metadata.transact([], [Put(LAYOUT.topic("a"), b"")])
        copied = await take_snapshot(bucket, metadata, LAYOUT, now_ms=lambda: 0)
        assert copied is not None
        assert await identify(bucket, metadata) == "ours"
        backup = SqliteStore(tmp_path / "backup.sqlite")
        await backup.transact([], [Put(LAYOUT.cluster_id, b"ours")])
        with pytest.raises(
            Rejected, match=f"at revision 2 and appointments 0, and were at {copied.revision} and 0 when they were copied"
        ) as refused:
            await identify(bucket, backup)
        assert "tidelog cluster restore" in refused.value.hint
        await backup.transact([], [Put(LAYOUT.revision_base, b"1000")])
        assert await identify(bucket, backup) == "ours", "a restore counts on from there"
        await backup.close()

    with_parts(tmp_path, test)


@pytest.mark.parametrize("number", [6, 8])
def test_of_two_copies_the_one_with_fewer_appointments_is_refused_whatever_the_revisions_are(tmp_path: Path, number: int) -> None:
    async def test(bucket: MemoryObjectStore, metadata: SqliteStore) -> None:
        await identify(bucket, metadata, "ours")
        await metadata.transact([], [Put(LAYOUT.appointments, encode_progress(Progress(7)))])
        revision = 1000 if number < 7 else 1
        await bucket.create(snapshot_key(SnapshotPosition(number, Revision(revision))), [b"a copy"])
        if number < 7:
            assert await identify(bucket, metadata) == "ours"
        else:
            with pytest.raises(Rejected, match="or they exist twice") as refused:
                await identify(bucket, metadata)
            assert "this copy must not be used any more" in refused.value.hint

    with_parts(tmp_path, test)


def with_batches(*numbers: int, url: str = "s3://ours/log") -> MemoryObjectStore:
    """A bucket of the cluster `ours` that has these batches of appointments."""
    bucket = MemoryObjectStore(url)

    async def fill() -> None:
        await sign_bucket(bucket, "ours", now_ms=0)
        for number in numbers:
            await bucket.create(appointments_key(number), [b"{}"])

    asyncio.run(fill())
    return bucket


@pytest.mark.parametrize("has", [[], [5, 6]], ids=["no appointments", "those of last night"])
def test_a_bucket_that_lacks_the_last_appointments_of_the_metadata_is_refused(tmp_path: Path, has: list[int]) -> None:
    older = with_batches(*has)

    async def test(_: MemoryObjectStore, metadata: SqliteStore) -> None:
        await metadata.transact([], [Put(LAYOUT.cluster_id, b"ours"), Put(LAYOUT.appointments, encode_progress(Progress(7)))])
        before = written_keys(older)
        with pytest.raises(Rejected, match=r"is older than the metadata of cluster ours: it lacks appointments/0+7,") as refused:
            await identify(older, metadata)
        assert "Acknowledged records may be missing" in refused.value.hint
        assert "tidelog cluster restore" in refused.value.hint
        assert written_keys(older) == before, "nothing was written"

    with_parts(tmp_path, test)


@pytest.mark.parametrize(
    ("applied", "has"),
    [
        pytest.param(0, [], id="before the first appointments"),
        pytest.param(0, [1], id="the first are created and not yet applied"),
        pytest.param(7, [6, 7], id="the last applied are there"),
        pytest.param(7, [6, 7, 8], id="a controller has created the next"),
        pytest.param(7, [120, 121], id="they were collected since the metadata were read"),
    ],
)
def test_a_bucket_is_not_taken_for_older_while_controllers_are_at_work(tmp_path: Path, applied: int, has: list[int]) -> None:
    bucket = with_batches(*has)

    async def test(_: MemoryObjectStore, metadata: SqliteStore) -> None:
        progress = [Put(LAYOUT.appointments, encode_progress(Progress(applied)))] if applied else []
        await metadata.transact([], [Put(LAYOUT.cluster_id, b"ours"), *progress])
        assert await identify(bucket, metadata) == "ours"

    with_parts(tmp_path, test)


def segment_in(session: int, seq: int = 0) -> tuple[str, list[bytes]]:
    return segment_key(SessionId(session), SegmentSeq(seq)), [b"a segment, longer than a seal" * 8]


def test_metadata_that_have_not_given_out_a_session_that_wrote_are_refused_whatever_their_revision_is(tmp_path: Path) -> None:
    """Others write to the same etcd, or it was restored with --bump-revision: then the revision proves nothing."""

    async def test(bucket: MemoryObjectStore, metadata: SqliteStore) -> None:
        await identify(bucket, metadata, "ours")
        for _ in range(6):
            await next_session(metadata, LAYOUT)
        await bucket.create(*segment_in(6))
        await bucket.create(segment_key(SessionId(8), SegmentSeq(0)), [bytes(SEAL_BYTES)])
        assert await identify(bucket, metadata) == "ours", "6 was given out, and in 8 there is no record"
        await bucket.create(*segment_in(7))
        with pytest.raises(Rejected, match="session 7 has written to memory://, and the metadata know nothing of it") as refused:
            await identify(bucket, metadata)
        assert "tidelog cluster restore" in refused.value.hint
        await next_session(metadata, LAYOUT)
        assert await identify(bucket, metadata) == "ours"

    with_parts(tmp_path, test)


def test_a_session_that_arrives_on_the_bucket_after_a_restore_has_skipped_its_number_is_refused(tmp_path: Path) -> None:
    """The restore was of a replica that lagged, and its replication went on."""

    async def test(bucket: MemoryObjectStore, metadata: SqliteStore) -> None:
        await identify(bucket, metadata, "ours")
        skipped = SkippedSessions.between(map(SessionId, (1, 3, 60, 62, 100)), SessionId(101))
        await metadata.transact([], [Put(LAYOUT.next_session, b"103"), Put(LAYOUT.skipped_sessions, encode_skipped(skipped))])
        for session in (3, 60, 100, 101, 102):
            await bucket.create(*segment_in(session))
        await bucket.create(segment_key(SessionId(6), SegmentSeq(0)), [bytes(SEAL_BYTES)])
        await bucket.create(claim_key(SessionId(7)), [b"{}"])
        assert await identify(bucket, metadata) == "ours", "no skipped session has written"
        for session in (99, 61, 7, 2):
            await bucket.create(*segment_in(session))
            with pytest.raises(Rejected, match=f"session {session} has written to memory://, and was not there when") as refused:
                await identify(bucket, metadata)
            assert session_prefix(SessionId(session)) in refused.value.hint

    with_parts(tmp_path, test)


def test_a_session_that_another_broker_begins_during_the_look_is_no_sign_of_a_backup(tmp_path: Path) -> None:
    async def test(bucket: MemoryObjectStore, metadata: SqliteStore) -> None:
        await identify(bucket, metadata, "ours")

        class Busy(MemoryObjectStore):
            async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
                if start_after.startswith(WAL):
                    session = await next_session(metadata, LAYOUT)
                    await self.create(*segment_in(session))
                return await super().list(prefix, start_after=start_after, limit=limit)

        busy = Busy()
        await sign_bucket(busy, "ours", now_ms=0)
        assert await identify(busy, metadata) == "ours"

    with_parts(tmp_path, test)


@pytest.mark.parametrize("wrote", [True, False])
def test_a_number_that_is_given_out_twice_ends_the_broker_where_its_first_owner_wrote(tmp_path: Path, wrote: bool) -> None:
    """The metadata are set back at that moment. Who only claimed it may be a broker of metadata that were replaced by a restore."""

    async def test(bucket: MemoryObjectStore, metadata: SqliteStore) -> None:
        await bucket.create(claim_key(SessionId(1)), [b"{}"])
        await bucket.create(segment_key(SessionId(1), SegmentSeq(1)), [bytes(SEAL_BYTES)])
        if wrote:
            await bucket.create(*segment_in(1))
        await next_session(metadata, LAYOUT)
        asked = FaultyStore(metadata)
        asked.before_transaction = lambda: metadata.transact([], [Delete(LAYOUT.next_session)])
        claims = SessionOpener(bucket, asked, LAYOUT, broker_id="b1", new_writer=lambda: bytes(16), now_ms=lambda: 0)
        if wrote:
            with pytest.raises(Rejected, match="session 1 has written"):
                await claims.next()
        else:
            assert (await claims.next()).id == 2

    with_parts(tmp_path, test)


def test_a_broker_that_takes_no_number_from_metadata_that_were_set_back_is_refused_at_its_next_start_too(tmp_path: Path) -> None:
    """Its supervisor starts it again at once. Numbers that it had taken would be no evidence any more."""

    async def test(bucket: MemoryObjectStore, metadata: SqliteStore) -> None:
        await identify(bucket, metadata, "ours")
        for session in (1, 2):
            await bucket.create(claim_key(SessionId(session)), [b"{}"])
            await bucket.create(*segment_in(session))
        claims = SessionOpener(bucket, metadata, LAYOUT, broker_id="b1", new_writer=lambda: bytes(16), now_ms=lambda: 0)
        for _ in range(3):
            with pytest.raises(Rejected, match="session 1 has written"):
                await claims.next()
            with pytest.raises(Rejected, match="session 1 has written"):
                await identify(bucket, metadata)

    with_parts(tmp_path, test)


@pytest.mark.parametrize("reported_by", ["copy", "session"])
def test_metadata_that_a_restore_has_replaced_are_not_to_be_restored_once_more(tmp_path: Path, reported_by: str) -> None:
    """They know nothing of what brokers of the restored ones have written, and are not the ones to use."""

    async def test(bucket: MemoryObjectStore, metadata: SqliteStore) -> None:
        await identify(bucket, metadata, "ours")
        await begin_restoration(bucket, "ours", now_ms=0)
        await bucket.create(
            *(segment_in(1) if reported_by == "session" else (snapshot_key(SnapshotPosition(0, Revision(1000))), [b"a copy"]))
        )
        with pytest.raises(Rejected, match="were rebuilt from it meanwhile") as refused:
            await identify(bucket, metadata)
        assert "Start it with the restored metadata" in refused.value.hint

    with_parts(tmp_path, test)


def test_brokers_that_start_at_once_on_a_new_bucket_all_start(tmp_path: Path) -> None:
    async def test(bucket: MemoryObjectStore, metadata: SqliteStore) -> None:
        assert len(set(await asyncio.gather(*(identify(bucket, metadata, f"id-{n}") for n in range(8))))) == 1

    with_parts(tmp_path, test)


def test_a_bucket_that_is_refused_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    async def test(bucket: MemoryObjectStore, metadata: SqliteStore) -> None:
        reported: list[bool] = []

        async def before_writing(*, is_new: bool) -> None:
            assert not written(bucket) or not is_new
            reported.append(is_new)

        async def identified(bucket: MemoryObjectStore) -> str:
            return await identify_cluster(bucket, metadata, LAYOUT, new_id="ours", now_ms=0, before_writing=before_writing)

        assert await identified(bucket) == await identified(bucket) == "ours"
        assert reported == [True, False]
        await next_session(metadata, LAYOUT)
        other = MemoryObjectStore("s3://other")
        await sign_bucket(other, "theirs", now_ms=0)
        for wrong in (other, MemoryObjectStore("s3://empty")):
            with pytest.raises(Rejected):
                await identified(wrong)
        assert reported == [True, False], "what is wrong is not even tried"

    with_parts(tmp_path, test)


def written_keys(bucket: MemoryObjectStore) -> list[str]:
    return list(bucket._keys)


def written(bucket: MemoryObjectStore) -> bool:
    return bool(bucket._keys)


@pytest.mark.slow
def test_a_broker_makes_no_directory_for_a_bucket_that_its_cluster_does_not_have(tmp_path: Path) -> None:
    data_dir, moved, foreign = tmp_path / "data", tmp_path / "moved", tmp_path / "foreign"

    def start(bucket: Path | None = None) -> None:
        url = bucket.as_uri() if bucket else ""

        async def main() -> None:
            async with run_broker(BrokerSettings(data_dir, bucket=url, http="127.0.0.1:0", grpc="127.0.0.1:0")):
                pass

        asyncio.run(main())

    with pytest.raises(Denied, match="No such file"):
        start(tmp_path / "mistyped" / "bucket")
    assert not (tmp_path / "mistyped").exists()
    start()
    with pytest.raises(Denied, match="No such file"):
        start(moved)
    assert not moved.exists()
    foreign.mkdir()
    (foreign / "cluster.json").write_text('{"cluster_id": "theirs", "created_at_ms": 0, "format_version": 1}')
    with pytest.raises(Rejected, match="belongs to cluster theirs"):
        start(foreign)
    assert [path.name for path in foreign.iterdir()] == ["cluster.json"]


@pytest.mark.slow
def test_a_broker_refuses_a_directory_within_another_clusters_bucket_and_leaves_no_proof_there(tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    (outer / "inner").mkdir(parents=True)
    (outer / "cluster.json").write_text('{"cluster_id": "theirs", "created_at_ms": 0, "format_version": 1}')

    async def main() -> None:
        bucket = (outer / "inner").as_uri()
        async with run_broker(BrokerSettings(tmp_path / "data", bucket=bucket, http="127.0.0.1:0", grpc="127.0.0.1:0")):
            pass

    with pytest.raises(Rejected, match="which belongs to cluster theirs"):
        asyncio.run(main())
    assert list((outer / "inner").iterdir()) == []


async def start(given: BrokerSettings) -> None:
    async with run_broker(given):
        pass


@pytest.mark.slow
def test_a_broker_whose_admin_key_can_not_be_read_makes_no_cluster(tmp_path: Path) -> None:
    access = AccessSettings(authentication=True, admin_key_file=tmp_path / "absent", audit_log="off")
    (tmp_path / "bucket").mkdir()
    bucket = (tmp_path / "bucket").as_uri()
    given = BrokerSettings(tmp_path / "data", bucket=bucket, http=FREE, grpc=FREE, access=access)
    with pytest.raises(InvalidArgument, match=r"admin_key_file: .* can't be read"):
        asyncio.run(start(given))
    assert list((tmp_path / "bucket").iterdir()) == []
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_a_broker_whose_disk_can_not_be_used_makes_no_cluster(tmp_path: Path) -> None:
    segments = SegmentSettings(disk_cache_bytes_max=1 << 20)
    (tmp_path / "bucket").mkdir()
    with DataDirectory(tmp_path / "data"):
        pass
    (tmp_path / "data" / "cold").write_text("a file where the folder is to be")
    bucket = (tmp_path / "bucket").as_uri()
    given = BrokerSettings(tmp_path / "data", bucket=bucket, http=FREE, grpc=FREE, segments=segments)
    with pytest.raises(Unavailable, match=r"can't be used for what is read from the bucket"):
        asyncio.run(start(given))
    assert list((tmp_path / "bucket").iterdir()) == []


# ── while a broker runs ─────────────────────────────────────────────────────────────────────────────────────────────────


def seen(cluster_id: str | None = "ours", *, written_at: int = 3, revision: int = 90, next_session: int = 8) -> SeenClusterId:
    return SeenClusterId(cluster_id, Revision(written_at), Revision(revision), SessionId(next_session))


@pytest.mark.parametrize(
    ("now", "happened"),
    [
        (seen(), None),
        (seen(revision=91), None),
        (seen(None, written_at=0, revision=91), "are gone"),
        (seen(None, written_at=0, revision=1), "are gone"),
        (seen("other"), "are those of cluster other now"),
        (seen(revision=89), "were set back from revision 90 to 89"),
        (seen(revision=1090, next_session=9), None),
        (seen(revision=1090, next_session=7), "were set back: they had given out session 7, and would do so again"),
        (seen(written_at=91, revision=91), "were written again, as a restore does"),
    ],
)
def test_metadata_that_changed_under_a_running_broker_are_recognised(now: SeenClusterId, happened: str | None) -> None:
    assert what_happened("ours", seen(), now) == happened


def stays_until(break_it: Callable[[FaultyStore], Awaitable[object]]) -> Rejected:
    """What ends a broker that has stayed for an hour."""

    async def main() -> Rejected:
        sqlite = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
        store = FaultyStore(sqlite)
        await sqlite.transact([], [Put(LAYOUT.cluster_id, b"ours")])
        for _ in range(9):
            await sqlite.transact([], [Put(LAYOUT.topic("a"), b"")])
        staying = asyncio.ensure_future(watch_identity(store, LAYOUT, "ours"))
        await asyncio.sleep(3600)
        assert not staying.done(), staying
        await break_it(store)
        await asyncio.wait((staying,), timeout=2 * CHECK_INTERVAL_S)
        await sqlite.close()
        error = staying.exception()
        assert isinstance(error, Rejected)
        return error

    return virtually(main())


def test_a_broker_ends_when_the_metadata_are_emptied_and_says_how_they_are_restored() -> None:
    error = stays_until(lambda store: store.store.transact([], [DeletePrefix(LAYOUT.root)]))
    assert "the metadata of cluster ours are gone" in error.message
    assert "tidelog cluster restore" in error.hint


def test_a_broker_ends_when_etcd_comes_back_with_an_older_disk() -> None:
    async def restore_a_backup(store: FaultyStore) -> None:
        older = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
        await older.transact([], [Put(LAYOUT.cluster_id, b"ours")])
        store.store = older

    error = stays_until(restore_a_backup)
    assert "were set back from revision 11 to 2" in error.message
    assert "tidelog cluster restore" in error.hint


def test_a_broker_that_was_left_running_over_a_restore_ends() -> None:
    async def restore(store: FaultyStore) -> None:
        store.down = unavailable()
        await store.store.transact([], [DeletePrefix(LAYOUT.root)])
        await store.store.transact([], [Put(LAYOUT.cluster_id, b"ours")])
        store.down = None

    assert "written again" in stays_until(restore).message


def test_a_broker_ends_when_another_etcd_answers_in_the_place_of_its_own() -> None:
    async def replace(store: FaultyStore) -> None:
        store.down = Rejected("etcd http://a:2379 belongs to cluster b, not to a as the members before", etcd_cluster_id="b")

    error = stays_until(replace)
    assert "belongs to cluster b" in error.message
    assert "tidelog cluster restore" in error.hint


def test_while_etcd_is_away_or_denies_us_a_broker_goes_on() -> None:
    async def away_for_hours(store: FaultyStore) -> None:
        for trouble in (unavailable(), Denied("the token has expired")):
            store.down = trouble
            await asyncio.sleep(3600)
        store.down = None
        await asyncio.sleep(60)
        await store.store.transact([], [Delete(LAYOUT.cluster_id)])

    assert "are gone" in stays_until(away_for_hours).message


@pytest.mark.slow
def test_a_whole_broker_stops_when_its_metadata_are_emptied(tmp_path: Path) -> None:
    async def main() -> None:
        metadata = SqliteStore(tmp_path / "metadata.sqlite")
        identity = await identify_cluster(MemoryObjectStore(), metadata, LAYOUT, new_id="ours", now_ms=0)
        settings = BrokerSettings(data_dir=tmp_path, http="127.0.0.1:0", grpc="127.0.0.1:0")
        broker = Broker(settings, InstrumentedObjectStore(MemoryObjectStore()), metadata, LAYOUT, cluster_id=identity)
        ready = asyncio.Event()
        running_broker = asyncio.ensure_future(broker.run(await reserve_ports(http=settings.http, grpc=settings.grpc), ready))
        await ready.wait()
        await metadata.transact([], [DeletePrefix(LAYOUT.root)])
        await asyncio.wait((running_broker,), timeout=120)
        await metadata.close()
        with pytest.raises(ExceptionGroup) as ended:
            running_broker.result()
        assert ended.group_contains(Rejected, match="the metadata of cluster ours are gone")

    asyncio.run(main())


def test_a_broker_ends_when_a_leader_epoch_has_fallen_though_the_revision_has_grown() -> None:
    async def main() -> None:
        sqlite = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
        await sqlite.transact([], [Put(LAYOUT.cluster_id, b"ours")])
        fallen: list[TopicPartition] = []
        staying = asyncio.ensure_future(watch_identity(sqlite, LAYOUT, "ours", set_back=lambda: fallen[0] if fallen else None))
        await asyncio.sleep(3600)
        assert not staying.done()
        fallen.append(TopicPartition(TopicId("a" * 32), Partition(3)))
        await asyncio.wait((staying,), timeout=2 * CHECK_INTERVAL_S)
        await sqlite.close()
        error = staying.exception()
        assert isinstance(error, Rejected)
        assert "were set back: the leader epoch of partition" in error.message

    virtually(main())


@pytest.mark.slow
@pytest.mark.parametrize("comes_back", ["empty", "as a backup"])
def test_a_broker_ends_when_its_etcd_comes_back_with_another_disk(tmp_path: Path, comes_back: str) -> None:
    """With the same name and addresses it has the same cluster id, too; and a watch from a revision to come waits in silence."""

    async def main() -> None:
        with running_etcd(tmp_path) as member:
            store = EtcdStore(settings(member.url))
            await store.transact([], [Put(LAYOUT.cluster_id, b"ours")])
            if comes_back == "as a backup":
                await in_thread(member.kill)
                await until(lambda: not store._client._members[0].connected)  # a write on the old connection would be in doubt
                await in_thread(lambda: shutil.copytree(tmp_path / member.name, tmp_path / "backup"))
                await in_thread(member.start)
            for _ in range(20):
                await store.transact([], [Put(LAYOUT.topic("a"), b"")])
            was_read = asyncio.Event()
            staying = asyncio.ensure_future(watch_identity(ReadOnce(store, was_read), LAYOUT, "ours"))
            await was_read.wait()
            await in_thread(member.kill)
            await in_thread(lambda: shutil.rmtree(tmp_path / member.name))
            if comes_back == "as a backup":
                await in_thread(lambda: shutil.move(tmp_path / "backup", tmp_path / member.name))
            await in_thread(member.start)
            await asyncio.wait((staying,), timeout=120)
            await store.close()
            error = staying.exception()
            assert isinstance(error, Rejected)
            assert ("are gone" if comes_back == "empty" else "were set back") in error.message

    asyncio.run(main())


class ReadOnce(FaultyStore):
    """Sets an event once a range was read."""

    def __init__(self, store: EtcdStore, was_read: asyncio.Event) -> None:
        super().__init__(store)
        self._was_read = was_read

    async def range(self, prefix: str, *, start_after: str = "", limit: int = 0, revision: Revision = NOW) -> RangeResult:
        found = await super().range(prefix, start_after=start_after, limit=limit, revision=revision)
        self._was_read.set()
        return found
