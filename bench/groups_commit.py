"""10,000 consumer groups that commit every five seconds, beside their heartbeats: what etcd is asked, against what it takes alone.

Alone means: the same etcd once the brokers are gone, as many clients as there were brokers, each with one transaction under way, of
as many compares and puts as the brokers' had on average, and of the same keys and sizes. They are encoded before the clock runs.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc.aio
import uvloop

from bench.cluster import BROKERS, cluster
from bench.etcd_server import etcd
from bench.figures import Figure, Target, median, number, percentile, spread
from bench.groups_at_scale import waits_note, watch_groups
from bench.groups_client import COMMIT_EVERY_S
from bench.run import Run
from metadata.groups.offsets import CommittedOffset, encode_offset
from metadata.model import Partition, Revision, TopicId, TopicPartition
from metadata.store.etcd.messages import encode_transaction
from metadata.store.etcd.proto import etcd_pb2
from metadata.store.interface import Compare, Put
from metadata.store.keys import KeyLayout

COMMIT_MS_MAX = 250.0
OF_ALONE_MAX = 0.5
ALONE_ROUNDS = 3
_TXN = "/etcdserverpb.KV/Txn"


def measure(run: Run) -> list[Figure]:
    groups = run.groups
    with run.new_directory("groups-commit-etcd") as directory, etcd(directory) as shared:
        with cluster(run, "groups-commit", shared=shared) as served:
            watched = watch_groups(run, served, commits=True)
        commits = watched.commits
        if not len(commits.due_s):
            raise RuntimeError(f"of {len(commits.failures):,} commits none was answered: {commits.refusals}")
        transactions = watched.asked["Txn"]
        each = max(1, round(len(commits.due_s) / transactions))
        target = shared.url.removeprefix("http://")
        alone = [run.client.run(transact_alone, target, groups, each, seconds=2 * run.seconds) for _ in range(1 + ALONE_ROUNDS)][1:]
    due = len(commits.due_s) + len(commits.failures)
    per_second = transactions / watched.seconds
    beats = watched.heartbeats
    return [
        Figure(
            "commits failed",
            len(commits.failures),
            "",
            Target(most=0),
            f"of {due:,} that were due in {watched.seconds:.0f} s; {groups:,} groups, one offset each {COMMIT_EVERY_S:g} s"
            + (f": {commits.refusals}" if commits.failures else ""),
        ),
        Figure(
            "commit, p99",
            percentile(list(commits.waited_s * 1000), 99),
            "ms",
            Target(most=COMMIT_MS_MAX),
            waits_note(commits),
        ),
        Figure("transactions for each commit", transactions / due, "", note=f"{number(per_second)} of them a second"),
        Figure(
            "etcd's transactions, against what it takes alone",
            per_second / median(alone),
            "×",
            Target(most=OF_ALONE_MAX),
            f"alone {spread(alone)} a second, of {each} offsets, by {len(BROKERS)} clients",
        ),
        Figure(
            "heartbeats lost meanwhile",
            len(beats.failures),
            "",
            Target(most=0),
            f"of {len(beats.due_s) + len(beats.failures):,}, one each {run.heartbeat_every_s:g} s"
            + (f": {beats.refusals}" if beats.failures else ""),
        ),
        Figure("CPU of the brokers together", watched.cores.brokers, "cores", note=str(watched.cores)),
    ]


def transact_alone(target: str, groups: int, each: int, *, seconds: float) -> float:
    """Transactions a second, of `each` commits. In the client's process."""

    async def run() -> float:
        layout = KeyLayout("groups-commit-alone")
        async with grpc.aio.insecure_channel(target) as channel:
            guards = [layout.group(f"group-{number:05}") for number in range(groups)]
            revisions: dict[str, Revision] = {}
            for start in range(0, groups, 100):
                puts = [Put(key, b"0") for key in guards[start : start + 100]]
                answer = await _transact(channel, encode_transaction([], puts))
                revisions |= dict.fromkeys(guards[start : start + 100], Revision(answer.header.revision))
        partition = TopicPartition(TopicId("0" * 32), Partition(0))
        offset = encode_offset(CommittedOffset(offset=1_000, committed_at_ms=1_735_689_600_000))
        requests = []
        for start in range(0, groups - each + 1, each):
            chosen = range(start, start + each)
            compares = [Compare(guards[number], revisions[guards[number]]) for number in chosen]
            puts = [Put(layout.offset(f"group-{number:05}", partition), offset) for number in chosen]
            requests.append(encode_transaction(compares, puts))
        started_s = time.monotonic()
        counts = await asyncio.gather(
            *(_keep_transacting(target, requests, first, started_s + seconds) for first in range(len(BROKERS)))
        )
        return sum(counts) / (time.monotonic() - started_s)

    return uvloop.run(run())


async def _keep_transacting(target: str, requests: list[bytes], first: int, until_s: float) -> int:
    count = 0
    async with grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        while time.monotonic() < until_s:
            answer = await _transact(channel, requests[(first + count * len(BROKERS)) % len(requests)])
            if not answer.succeeded:
                raise RuntimeError("etcd found another revision than the compare had")
            count += 1
    return count


async def _transact(channel: grpc.aio.Channel, request: bytes) -> etcd_pb2.TxnResponse:
    call: Any = channel.unary_unary(_TXN, response_deserializer=etcd_pb2.TxnResponse.FromString)
    answer: etcd_pb2.TxnResponse = await call(request, timeout=10)
    return answer
