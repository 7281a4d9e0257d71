"""What a replay reads, pinned when it begins; and what is refused before anything is written. Without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from pyspark.errors import StreamingQueryException

from metadata.errors import InvalidArgument, InvalidTimestamp, OutOfRange, Rejected, TidelogError, Unavailable, UnknownTopic
from metadata.model import TopicPartition
from metadata.topics.settings import INT64_MAX
from segments.bucket.layout import done_key
from segments.object_store.open import open_store
from spark.replay.plan import (
    NEW_REPLAY,
    PartitionChoice,
    ReplayPlan,
    ReplayRequest,
    ReplayTarget,
    Verdict,
    check_same,
    decode_plan,
    encode_plan,
    plan_of,
)
from spark.replay.replay import (
    SLOW_WORKER,
    ReplayProgress,
    check_dates,
    check_target,
    records_sent,
    resolve_range,
    run_query,
    written_topic_id,
)
from spark.runtime.bucket_thread import BucketThread
from spark.sink.row_encoder import TopicFacts
from spark.sink.staged_files import Done, PartitionCount
from spark.sink.writer import write_of_query
from spark.source.log_snapshot import PartitionSnapshot
from spark.source.scan_plan import OffsetRange
from tests.kit.segments.batches import ORDERS
from tests.kit.spark.sink_world import World, killed
from tests.kit.spark.topics_on_disk import START_MS, Bucket, records

FORMER, PRESENT = "a" * 32, "b" * 32
NOW_MS = START_MS + 100_000


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    """A record a second: a hundred in partition 0, thirty in partition 1."""
    made = Bucket(tmp_path_factory.mktemp("log") / "bucket")
    made.mirror("orders", ORDERS.topic_id, 2, revision=2)
    made.produce(records(0, 60))
    made.compact()
    made.produce(records(60, 40))
    made.produce(records(0, 30), partition=1)
    return made


def asked(bucket: Bucket, **changes: Any) -> ReplayRequest:
    given = {"start": "earliest", "end": "latest", "target": ReplayTarget.PARQUET, "into": "/rows", **changes}
    return msgspec.convert({"topics": ("orders",), "bucket": bucket.url, **given}, ReplayRequest)


Resolved = tuple[dict[TopicPartition, PartitionSnapshot], dict[TopicPartition, OffsetRange]]


def resolve(wanted: ReplayRequest) -> Resolved:
    with BucketThread(wanted.bucket) as opened:
        return opened.run(lambda store: resolve_range(store, wanted, now_ms=NOW_MS))


def planned(bucket: Bucket, target_partitions: int | None = None, /, **changes: Any) -> ReplayPlan:
    wanted = asked(bucket, **changes)
    return plan_of(wanted, *resolve(wanted), target_partitions=target_partitions)


@pytest.mark.parametrize(
    ("start", "end", "ranges"),
    [
        ("earliest", "latest", {0: (0, 100), 1: (0, 30)}),
        ("10", "20", {0: (10, 20), 1: (10, 20)}),
        (f"@{START_MS + 25_000}", f"@{START_MS + 50_000}", {0: (25, 50), 1: (25, 30)}),
        ("20s", "latest", {0: (80, 100), 1: (30, 30)}),
        ("2026-01-01T00:01:30Z", "latest", {0: (90, 100), 1: (30, 30)}),
        ('{"orders":{"0":7,"1":-2}}', '{"orders":{"0":8,"1":-1}}', {0: (7, 8), 1: (0, 30)}),
        ("10", "10", {0: (10, 10), 1: (10, 10)}),
        ('{"orders":{"0":5,"1":0}}', '{"orders":{"0":3,"1":30}}', {0: (5, 5), 1: (0, 30)}),
        ('{"orders":{"0":5,"1":0}}', '{"orders":{"0":3,"1":-1}}', {0: (5, 5), 1: (0, 30)}),
    ],
)
def test_a_range_is_of_offsets_or_of_times(bucket: Bucket, start: str, end: str, ranges: dict[int, tuple[int, int]]) -> None:
    assert planned(bucket, start=start, end=end).ranges == {"orders": ranges}


@pytest.mark.parametrize(
    ("changes", "error", "reported"),
    [
        ({"topics": ("nowhere",)}, UnknownTopic, "there is no topic nowhere"),
        ({"start": "tomorrow"}, InvalidArgument, "'tomorrow' is no place"),
        ({"start": "latest", "end": "earliest"}, InvalidArgument, "--to earliest is no place where a replay can end"),
        ({"start": "latest"}, InvalidArgument, "--from latest begins behind the last record"),
        ({"start": "20", "end": "10"}, InvalidArgument, "--from 20 lies behind --to 10 in orders/0"),
        (
            {"start": '{"orders":{"0":5,"1":4}}', "end": '{"orders":{"0":3,"1":4}}'},
            InvalidArgument,
            "--from .* in orders/0: there is",
        ),
        (
            {"start": '{"orders":{"0":5,"1":-1}}', "end": '{"orders":{"0":3,"1":-1}}'},
            InvalidArgument,
            "--from .* in orders/0: there",
        ),
        ({"start": '{"orders":{"0":5,"1":30}}', "end": '{"orders":{"0":3,"1":-1}}'}, InvalidArgument, "--from .* lies behind --to"),
        ({"start": "10s", "end": "20s"}, InvalidArgument, "--from 10s lies behind --to 20s: there is nothing to replay"),
        ({"start": "30", "end": f"@{START_MS}"}, InvalidArgument, f"--from 30 lies behind --to @{START_MS}"),
        ({"start": "-10"}, InvalidArgument, "--from -10 is no place where a replay can begin"),
        ({"start": '{"orders":{"0":'}, InvalidArgument, "--from .* is malformed"),
        ({"start": "101"}, OutOfRange, "--from: 101 for orders/0 lies behind the last record.*Nothing was written"),
        ({"end": "31"}, OutOfRange, "--to: 31 for orders/1 lies behind the last record"),
    ],
)
def test_a_plan_of_something_that_is_not_there_is_refused(
    bucket: Bucket, changes: dict[str, Any], error: type[TidelogError], reported: str
) -> None:
    with pytest.raises(error, match=reported) as refused:
        planned(bucket, **changes)
    assert refused.value.hint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "end"), [("earliest", "5"), ('{"orders":{"0":-2}}', '{"orders":{"0":9}}'), (f"@{START_MS}", "5")]
)
def test_an_end_below_the_log_start_is_refused_with_a_hint_for_a_later_end(tmp_path: Path, start: str, end: str) -> None:
    made = Bucket(tmp_path / "bucket")
    made.produce(records(0, 20))
    made.delete_records(10)
    with pytest.raises(OutOfRange) as refused:
        planned(made, start=start, end=end)
    assert f"--to {end} lies below what is left of orders/0: offsets below 10 of it were deleted" in refused.value.message
    assert "Nothing was written" in refused.value.message
    assert refused.value.hint == "Give a later --to, above 10."


def test_a_plan_names_each_partition_so_that_nothing_that_comes_later_is_read(bucket: Bucket) -> None:
    plan = planned(bucket, start="10", end="20")
    assert plan.source_options() == {
        "bucket": bucket.url,
        "assign": '{"orders":[0,1]}',
        "startingOffsets": '{"orders":{"0":10,"1":10}}',
        "endingOffsets": '{"orders":{"0":20,"1":20}}',
        "topicIds": f'{{"orders":"{ORDERS.topic_id}"}}',
        "includeHeaders": "true",
    }
    assert plan.offset_count == 20
    assert plan.offsets_done({"orders": {0: 14}}) == 4
    assert plan.offsets_done({"orders": {0: 20, 1: 13}}) == 13
    assert decode_plan(encode_plan(plan), "here") == plan


@pytest.mark.parametrize(
    ("placement", "target_partitions", "keeps"),
    [
        (PartitionChoice.AUTO, 2, True),
        (PartitionChoice.AUTO, 3, False),
        (PartitionChoice.KEEP, 3, True),
        (PartitionChoice.BY_KEY, 2, False),
        (PartitionChoice.KEEP, None, False),
    ],
)
def test_partitions_are_kept_where_the_counts_are_equal_or_as_it_is_asked(
    bucket: Bucket, placement: PartitionChoice, target_partitions: int | None, keeps: bool
) -> None:
    assert planned(bucket, target_partitions, placement=placement).keeps_partitions is keeps


def test_partitions_that_the_target_lacks_are_refused(bucket: Bucket) -> None:
    with pytest.raises(Rejected, match="orders has partitions up to 1, and /rows has 1") as refused:
        planned(bucket, 1, placement=PartitionChoice.KEEP)
    assert "--partitions 2" in refused.value.hint


def test_a_checkpoint_of_another_replay_is_refused_with_what_differs(bucket: Bucket) -> None:
    plan = planned(bucket)
    check_same(plan, asked(bucket), "./here")
    differs = r"./here .* another replay: --from was 'earliest', and is '3'; --where was '', and is 'x'"
    with pytest.raises(InvalidArgument, match=differs):
        check_same(plan, asked(bucket, start="3", where="x"), "./here")


def answers(*topic_ids: str) -> Callable[[], TopicFacts]:
    """Gives the facts of the topic `kept` with these ids, one after the other."""
    left = list(topic_ids)
    return lambda: TopicFacts("kept", left.pop(0), 2, 1 << 20)


def test_a_replay_into_a_topic_that_was_made_again_is_refused(bucket: Bucket) -> None:
    plan = decode_plan(encode_plan(planned(bucket, 2, target=ReplayTarget.TOPIC, into="kept")), "here")
    ask = answers(PRESENT, PRESENT, PRESENT)
    with pytest.raises(
        Rejected, match=r"topic kept was deleted and made again since this replay began.*Nothing was written"
    ) as refused:
        check_target(plan, FORMER, ask(), ask)
    assert "another --checkpoint" in refused.value.hint


@pytest.mark.parametrize("lagging", [0, 1, 2])
def test_a_broker_that_describes_the_former_target_topic_does_not_end_a_replay(bucket: Bucket, lagging: int) -> None:
    ask = answers(*[FORMER] * lagging, PRESENT)
    check_target(planned(bucket, 2, target=ReplayTarget.TOPIC, into="kept"), PRESENT, ask(), ask)


def test_a_replay_that_has_written_nothing_may_write_to_a_topic_that_was_made_again(bucket: Bucket) -> None:
    check_target(planned(bucket, 2, target=ReplayTarget.TOPIC, into="kept"), "", answers(PRESENT)(), answers())


def test_the_id_of_the_target_in_a_plan_of_an_earlier_tidelog_is_passed_over(bucket: Bucket) -> None:
    """A broker that lagged may have given the id of a former topic, which the replay has never written to."""
    plan = planned(bucket, 2, target=ReplayTarget.TOPIC, into="kept")
    stored = msgspec.json.decode(encode_plan(plan)) | {"target_id": FORMER}
    assert decode_plan(msgspec.json.encode(stored), "here") == plan


def test_records_that_were_sent_to_a_former_topic_do_not_count_as_written(tmp_path: Path) -> None:
    def count(topic_id: str, records: int) -> PartitionCount:
        return PartitionCount("kept", topic_id, 0, records)

    async def test() -> None:
        url, query = f"file://{tmp_path}", "7f"
        write = write_of_query(query)
        total = (count(FORMER, 30), count(PRESENT, 20))
        done = Done(write=write, batch=3, done_ms=1, partitions=(count(PRESENT, 20),), first_batch=0, total=total)
        store = await open_store(url)
        await store.create(done_key(write, 3), [msgspec.json.encode(done)])
        await store.close()
        assert await records_sent(url, query, PRESENT) == 20
        assert await records_sent(url, query, FORMER) == 30
        assert await records_sent(url, "another", FORMER) == 0
        assert await written_topic_id(url, query, "kept") == PRESENT
        assert await written_topic_id(url, query, "orders") == ""
        assert await written_topic_id(url, "another", "kept") == ""

    asyncio.run(test())


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]"])
def test_a_checkpoint_that_is_none_of_a_replay_is_refused(body: bytes) -> None:
    with pytest.raises(Rejected, match="here is not of a replay"):
        decode_plan(body, "here")


def test_both_sides_have_to_agree() -> None:
    assert Verdict(3, 3).agrees
    assert not Verdict(3, 2).agrees


class Query:
    """Replaces Spark's: fails with each of `fails`, and then has a batch."""

    def __init__(self, fails: list[str]) -> None:
        self.fails = fails
        self.stopped = 0
        end = '{"version": 1, "topics": {"orders": {"id": "1f", "offsets": {"0": 30, "1": 30}}}}'
        self.recentProgress = [SimpleNamespace(batchId=0, numInputRows=7, sources=[SimpleNamespace(endOffset=end)])]

    def awaitTermination(self, timeout_s: int) -> bool:
        if self.fails:
            raise StreamingQueryException(self.fails.pop(0))
        return True

    def stop(self) -> None:
        self.stopped += 1


def test_a_worker_that_spark_has_not_waited_for_is_started_again(bucket: Bucket) -> None:
    query, reported = Query([f"[STREAM_FAILED] terminated with exception: {SLOW_WORKER}."] * 2), list[ReplayProgress]()
    run_query(lambda: query, planned(bucket), reported.append)  # type: ignore[arg-type,return-value]  # as much of a query as is needed
    assert reported == [ReplayProgress(60, 7)]
    assert query.stopped == 3


@pytest.mark.parametrize(
    ("failure", "reported"),
    [
        ("[STREAM_FAILED] Query [id = 7] terminated with exception: no disk\n\tat java", "the replay was broken off: no disk$"),
        ("x\npyspark.errors.exceptions.base.PySparkException: offsets 3 to 4 were deleted. Go on.\n", "off: offsets 3 to 4 were"),
        (SLOW_WORKER, SLOW_WORKER),
    ],
)
def test_the_error_that_ends_a_replay_is_reported_without_tracebacks(bucket: Bucket, failure: str, reported: str) -> None:
    with pytest.raises(Unavailable, match=reported) as failed:
        run_query(lambda: Query([failure] * 9), planned(bucket), lambda progress: None)  # type: ignore[arg-type,return-value]  # the test's own
    assert "Run the same command line again" in failed.value.hint


@pytest.mark.parametrize(
    ("remedy", "kept"),
    [
        ("They are lost to it. Set failOnDataLoss to false to go on at 5.", "They are lost to it."),
        ("Set failOnDataLoss to false to go on with the new one, from its earliest record.", ""),
        (
            "Restore the named object from a backup. Or set failOnDataLoss to false to read the rest.",
            "Restore the named object from a backup.",
        ),
    ],
)
def test_data_loss_in_a_replay_is_reported_with_a_remedy_that_a_replay_has(bucket: Bucket, remedy: str, kept: str) -> None:
    """It has no option to pass over it, and the same command line would fail again."""
    failure = f"x\npyspark.errors.exceptions.base.PySparkException: offsets 3 to 4 were deleted. {remedy}\n"
    with pytest.raises(Unavailable) as failed:
        run_query(lambda: Query([failure] * 9), planned(bucket), lambda progress: None)  # type: ignore[arg-type,return-value]  # the test's own
    assert failed.value.message == f"the replay was broken off: offsets 3 to 4 were deleted. {kept}".strip()
    assert "begin a new replay of what is still there" in failed.value.hint


def test_a_target_topic_that_is_made_again_during_a_replay_ends_it_with_a_remedy_that_a_replay_has(bucket: Bucket) -> None:
    async def refusal() -> TidelogError:
        world = World()
        await world.commit([await world.stage(["a"])])
        world.recreate()
        with pytest.raises(Rejected) as refused:
            await world.commit([await world.stage(["b"], batch=1)], batch=1)
        return refused.value

    error = asyncio.run(refusal())
    failure = f"x\npyspark.errors.exceptions.base.PySparkException: {error.message}. {error.hint}\n"
    with pytest.raises(Rejected, match=r"broken off: .* topic orders was deleted and made again .*has sent nothing\.$") as failed:
        run_query(lambda: Query([failure] * 9), planned(bucket), lambda progress: None)  # type: ignore[arg-type,return-value]  # the test's own
    assert failed.value.hint == NEW_REPLAY


def test_a_target_topic_that_is_made_again_after_a_batch_was_chosen_ends_a_replay_with_a_remedy_that_it_has(bucket: Bucket) -> None:
    async def refusal() -> TidelogError:
        world = World()
        files = [await world.stage(["a"])]
        world.steps.crash_at = 3  # it has chosen
        with killed():
            await world.commit(files)
        world.revive()
        world.recreate()
        with pytest.raises(Rejected) as refused:
            await world.commit([])
        return refused.value

    error = asyncio.run(refusal())
    failure = f"x\npyspark.errors.exceptions.base.PySparkException: {error.message}. {error.hint}\n"
    with pytest.raises(Rejected, match=r"broken off: .* topic orders was deleted and made again") as failed:
        run_query(lambda: Query([failure] * 9), planned(bucket), lambda progress: None)  # type: ignore[arg-type,return-value]  # the test's own
    assert failed.value.hint == NEW_REPLAY


@pytest.mark.parametrize(
    ("limit_ms", "changes", "refused"),
    [
        (60_000, {}, 71),  # of partition 0, whose last records are in segments
        (60_000, {"end": '{"orders":{"0":71,"1":30}}'}, None),
        (60_000, {"start": '{"orders":{"0":80,"1":0}}'}, 80),
        (15_000, {"start": '{"orders":{"0":40,"1":0}}', "end": '{"orders":{"0":60,"1":20}}'}, 40),  # in Parquet
        (100_000, {}, None),
        (60_000, {"where": "partition = 1"}, None),  # whether it leaves them out, only rows show
        (INT64_MAX, {}, None),
    ],
)
def test_records_that_a_topic_would_not_take_for_their_dates_are_refused_before_one_is_written(
    bucket: Bucket, limit_ms: int, changes: dict[str, str], refused: int | None
) -> None:
    into = TopicFacts("kept", "a" * 32, 2, 1 << 20, timestamp_after_max_ms=limit_ms)
    wanted = asked(bucket, target=ReplayTarget.TOPIC, into="kept", **changes)
    snapshots, ranges = resolve(wanted)

    def check() -> None:
        with BucketThread(bucket.url) as opened:
            opened.run(lambda store: check_dates(store, wanted, into, snapshots, ranges, now_ms=START_MS + 10_000))

    if refused is None:
        check()
        return
    with pytest.raises(
        InvalidTimestamp, match=f"offset {refused} of orders/0 is dated too far ahead.*Nothing was written"
    ) as reported:
        check()
    assert "tidelog topic alter kept --set message.timestamp.after.max.ms=" in reported.value.hint
