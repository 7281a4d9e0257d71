"""Records that Spark puts into a topic, beside the SDK's own producer: a replay, whole, and a stream from one topic into another.

One broker, and a topic of `rows` records in Parquet. Runs take turns, the first one only warms up. A replay is timed with all that
a user waits for but the start of Spark: plan, batches, and the counting of both sides in the end.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench import sdk_client
from bench.compacted_history import TOPIC, VALUE_BYTES, History, compacted_history
from bench.figures import Figure, Target, median, spread
from bench.run import Run
from spark.replay.plan import ReplayRequest, ReplayTarget
from spark.replay.replay import Running, replay, target_topic
from spark.runtime.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
ROUNDS = 3
# Of the 20 million that are read elsewhere: each round writes them again, through a broker that compacts them again.
ROWS_MAX = 4_000_000


def measure(run: Run) -> list[Figure]:
    rows = min(run.rows, ROWS_MAX)
    with compacted_history(run, "spark-replay", partitions=PARTITIONS, megabytes=rows * VALUE_BYTES / 1e6, flags=()) as history:
        spark = spark_session("tidelog bench", master="local[*]", config={"spark.driver.memory": "2g"})
        try:
            rounds = [_round(run, spark, history, number) for number in range(1 + ROUNDS)][1:]
        finally:
            spark.stop()
    replayed, streamed, produced = zip(*rounds, strict=True)
    return [
        _ratio("a replay into a topic, to the SDK's producer", replayed, produced, Target(least=0.5)),
        _ratio("a stream from topic to topic, to the same", streamed, produced, None),
        Figure("the SDK's producer", round(median(produced)), "records/s", note=f"{VALUE_BYTES} B each, {PARTITIONS} partitions"),
    ]


def _ratio(name: str, ours: tuple[float, ...], theirs: tuple[float, ...], target: Target | None) -> Figure:
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return Figure(name, median(ratios), "×", target, f"{median(ours):,.0f} records/s ({spread(ratios)} ×)")


def _round(run: Run, spark: SparkSession, history: History, number: int) -> tuple[float, float, float]:
    """Records a second of a replay, a stream, and the producer."""
    served, checkpoints = history.served, run.directory / "spark-replay"
    replayed, streamed, produced = (f"{kind}-{number}" for kind in ("replayed", "streamed", "produced"))
    for topic in (replayed, streamed, produced):
        served.create_topic(topic, PARTITIONS)
    url = f"file://{served.bucket}"
    asked = ReplayRequest((TOPIC,), url, "earliest", "latest", ReplayTarget.TOPIC, replayed)
    running = Running(checkpoint=str(checkpoints / replayed), brokers=served.http_url)
    started_s = time.perf_counter()
    verdict = replay(spark, asked, running, into=target_topic(asked, running))
    replay_s = time.perf_counter() - started_s
    assert verdict.agrees, verdict
    stream_s = _stream(spark, url, served.http_url, streamed, checkpoints / streamed)
    assert served.records_in(streamed) == verdict.written, streamed
    sent = run.client.run(
        sdk_client.produce_for, [served.http_url], produced, PARTITIONS, value_bytes=VALUE_BYTES, seconds=max(3.0, 2 * run.seconds)
    )
    return verdict.written / replay_s, verdict.written / stream_s, sent.records_per_second


def _stream(spark: SparkSession, bucket: str, brokers: str, topic: str, checkpoint: Path) -> float:
    """Seconds for all that is there, in batches as a replay has them."""
    started_s = time.perf_counter()
    read = spark.readStream.format("tidelog").options(
        bucket=bucket, subscribe=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger="2000000"
    )
    written = read.load().select("key", "value").writeStream.format("tidelog").options(brokers=brokers, bucket=bucket, topic=topic)
    query = written.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return time.perf_counter() - started_s
