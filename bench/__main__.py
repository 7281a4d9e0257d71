"""`python -m bench`: the benchmarks that are named, or all of one broker, and their figures.

    python -m bench                               all of one broker, in under four minutes
    python -m bench cluster                       all of three brokers with an etcd, or an S3 server, in under twenty
    python -m bench spark --rows 2000000          what Spark does with the bucket
    python -m bench kafka --ends-after 2400       Apache Kafka and Tidelog side by side; needs Java and Maven
    python -m bench console                       what readers of the console cost producers, and how long its pages take
    python -m bench produce-grpc --seconds 5      one of them, measured longer
    python -m bench --json figures.json           the figures and the machine's facts, for programs

Ends with 1 when a figure falls short of its target. Other work on the machine shows in the figures: run it alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console as Terminal

from bench import (
    access,
    catch_up,
    codec,
    compaction,
    compaction_codec,
    console,
    controller_failover,
    drain,
    etcd_load,
    failover,
    groups_commit,
    groups_heartbeat,
    groups_rebalance,
    history_reads,
    idle,
    idle_partitions,
    kafka,
    kafka_fetch,
    kafka_groups,
    long_polls,
    machine,
    metrics,
    partitions,
    produce_grpc,
    produce_http,
    produce_memory,
    quiet_producer,
    ready,
    rolling_restart,
    spark_planning,
    spark_reads,
    spark_replay,
    tail_fan_out,
    tail_reads,
    three_brokers,
    tls,
)
from bench.figures import Figure, lines, paragraph
from bench.load import client_process
from bench.run import ROUNDS, Benchmark, Run

BENCHMARKS: dict[str, Benchmark] = {
    "produce-grpc": produce_grpc.measure,
    "quiet-producer": quiet_producer.measure,
    "produce-http-json": produce_http.measure_json,
    "produce-http-arrow": produce_http.measure_arrow,
    "produce-memory": produce_memory.measure,
    "metrics": metrics.measure,
    "tail-reads": tail_reads.measure,
    "tail-fan-out": tail_fan_out.measure,
    "history-reads": history_reads.measure,
    "catch-up": catch_up.measure,
    "codec": codec.measure,
    "compaction-codec": compaction_codec.measure,
    "compaction": compaction.measure,
    "partitions": partitions.measure,
    "tls": tls.measure,
    "access": access.measure,
    "idle": idle.measure,
}
CLUSTER_BENCHMARKS: dict[str, Benchmark] = {
    "failover": failover.measure,
    "controller-failover": controller_failover.measure,
    "drain": drain.measure,
    "rolling-restart": rolling_restart.measure,
    "ready": ready.measure,
    "three-brokers": three_brokers.measure,
    "etcd-load": etcd_load.measure,
    "idle-partitions": idle_partitions.measure,
    "groups-heartbeat": groups_heartbeat.measure,
    "groups-commit": groups_commit.measure,
    "groups-rebalance": groups_rebalance.measure,
    "catch-up-s3": catch_up.measure_on_s3,
}
SPARK_BENCHMARKS: dict[str, Benchmark] = {
    "spark-planning": spark_planning.measure,
    "spark-reads": spark_reads.measure,
    "spark-replay": spark_replay.measure,
}
# Apache Kafka beside Tidelog: tens of minutes, so --ends-after has to be raised.
KAFKA_BENCHMARKS: dict[str, Benchmark] = {
    "kafka-fetch": kafka_fetch.measure,
    "kafka-fetch-s3": kafka_fetch.measure_on_s3,
    "kafka-groups": kafka_groups.measure,
    "long-polls": long_polls.measure,
    "kafka": kafka.measure,
    "kafka-s3": kafka.measure_on_s3,
    "kafka-alone": kafka.measure_kafka_alone,
    "kafka-tidelog": kafka.measure_tidelog_alone,
}
# Tens of seconds, and nothing that a program without the console shows.
CONSOLE_BENCHMARKS: dict[str, Benchmark] = {"console": console.measure}
# Names that stand for several: brokers with an etcd, or an S3 server, at one to four minutes each; Spark, which takes as long.
GROUPS = {"cluster": CLUSTER_BENCHMARKS, "spark": SPARK_BENCHMARKS}
ALL_BENCHMARKS = BENCHMARKS | CLUSTER_BENCHMARKS | SPARK_BENCHMARKS | CONSOLE_BENCHMARKS | KAFKA_BENCHMARKS
# Unlike /tmp, never in memory: fsync would cost nothing there.
DISK = "/var/tmp"
# A benchmark that hangs is ended then, unless an option says otherwise.
ENDS_AFTER_S = 300
# At most, by the fastest benchmark on a fast disk; its files are removed when it ends.
WRITTEN_GIB_PER_SECOND = 1.5


def main() -> int:
    arguments = _arguments()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what users install is compiled: no start of a broker is to do it again
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, _ended)
    progress = Terminal(stderr=True)
    results: dict[str, list[Figure]] = {}
    started_s = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=arguments.directory) as directory, client_process() as client:
        facts = machine.facts(Path(directory))
        for name in chosen(arguments.benchmarks):
            progress.print(f"[dim]{name} …[/]")
            signal.alarm(arguments.ends_after)
            run = Run(
                Path(directory),
                arguments.seconds,
                client,
                arguments.groups,
                arguments.heartbeat_every,
                arguments.rows,
                arguments.history,
                arguments.kafka_warm_up,
                arguments.kafka_records,
            )
            results[name] = ALL_BENCHMARKS[name](run)
            signal.alarm(0)
    facts["seconds"] = round(time.perf_counter() - started_s, 1)
    figures = {name: [figure.as_json() for figure in found] for name, found in results.items()}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"machine": facts, "figures": figures}, indent=2) + "\n", encoding="utf-8")
    measured_on = " · ".join(f"{name.replace('_', ' ')} {fact}" for name, fact in facts.items())
    terminal = Terminal(highlight=False, soft_wrap=True)
    terminal.print()
    for line in (*paragraph(measured_on), *(line for name, found in results.items() for line in lines(name, found))):
        terminal.print(line)
    return 1 if any(figure.holds is False for found in results.values() for figure in found) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Tidelog's figures, each beside its target.")
    groups = "; ".join(f"or of {', '.join(members)}, which all run for {name!r}" for name, members in GROUPS.items())
    named = f"one of {', '.join(BENCHMARKS)}, all of which run where none is named; {groups}"
    parser.add_argument("benchmarks", nargs="*", metavar="NAME", help=named)
    parser.add_argument("--seconds", type=float, default=1.5, help="of one measurement; a figure is the median of several (1.5)")
    parser.add_argument("--directory", type=Path, default=Path(DISK), help=f"on the disk to be measured ({DISK})")
    parser.add_argument("--groups", type=int, default=10_000, help="of groups-heartbeat and groups-commit (10000)")
    parser.add_argument(
        "--heartbeat-every", type=float, default=3.0, metavar="SECONDS", help="of each member of these groups (3, as the SDK)"
    )
    parser.add_argument("--rows", type=int, default=20_000_000, help="of spark-reads (20000000)")
    parser.add_argument("--history", type=int, default=200, metavar="MEGABYTES", help="of catch-up (200)")
    parser.add_argument(
        "--kafka-warm-up", type=int, default=15_000_000, metavar="RECORDS", help="that each broker of kafka takes first (15000000)"
    )
    parser.add_argument(
        "--kafka-records", type=int, default=2_000_000, metavar="RECORDS", help="of each measurement of kafka (2000000)"
    )
    parser.add_argument(
        "--ends-after",
        type=int,
        default=ENDS_AFTER_S,
        metavar="SECONDS",
        help=f"then a benchmark that hangs is ended ({ENDS_AFTER_S})",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    known = [*ALL_BENCHMARKS, *GROUPS]
    unknown = [name for name in arguments.benchmarks if name not in known]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(known)}")
    if not arguments.seconds > 0:
        parser.error("--seconds must be above 0")
    counts = (arguments.groups, arguments.ends_after, arguments.rows, arguments.history)
    if min(*counts, arguments.kafka_warm_up, arguments.kafka_records) < 1 or not arguments.heartbeat_every > 0:
        named = "--groups, --heartbeat-every, --rows, --history, --kafka-warm-up, --kafka-records"
        parser.error(f"{named} and --ends-after must be above 0")
    needed_gib = (1 + ROUNDS) * arguments.seconds * WRITTEN_GIB_PER_SECOND
    free_gib = shutil.disk_usage(arguments.directory).free / 2**30
    if free_gib < needed_gib:
        parser.error(f"{arguments.directory} has {free_gib:.1f} GiB free; up to {needed_gib:.1f} GiB are written: see --directory")
    return arguments


def _ended(number: int, _: object) -> None:
    """As Ctrl-C: the processes that were started are ended, and what they wrote is removed."""
    sys.exit("a benchmark did not end in time: see --ends-after" if number == signal.SIGALRM else 128 + number)


def chosen(names: Sequence[str]) -> list[str]:
    chosen = [each for name in names or BENCHMARKS for each in GROUPS.get(name, [name])]
    return list(dict.fromkeys(chosen))


if __name__ == "__main__":
    sys.exit(main())
