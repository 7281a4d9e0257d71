"""However etcd cuts and repeats its answers, each transaction comes out once, whole and in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from metadata.model import Revision
from metadata.store.etcd.proto import etcd_pb2, mvcc_pb2
from metadata.store.etcd.watch_batches import WatchBatches
from metadata.store.interface import Event, WatchBatch

FIRST = Revision(5)


def seen(key: str, revision: int, value: bytes | None = b"") -> mvcc_pb2.Event:
    if value is None:
        return mvcc_pb2.Event(type=mvcc_pb2.Event.DELETE, kv=mvcc_pb2.KeyValue(key=key.encode(), mod_revision=revision))
    return mvcc_pb2.Event(kv=mvcc_pb2.KeyValue(key=key.encode(), mod_revision=revision, value=value))


def answer(*events: mvcc_pb2.Event, fragment: bool = False, revision: int = 1000) -> etcd_pb2.WatchResponse:
    return etcd_pb2.WatchResponse(events=events, fragment=fragment, header=etcd_pb2.ResponseHeader(revision=revision))


def taken(batches: WatchBatches, *answers: etcd_pb2.WatchResponse) -> list[tuple[int, list[str]]]:
    return [(batch.revision, [event.key for event in batch.events]) for one in answers for batch in batches.take(one)]


def test_an_answer_of_several_revisions_is_several_transactions() -> None:
    batches = WatchBatches(FIRST)
    assert taken(batches, answer(seen("a", 7), seen("b", 7), seen("a", 8))) == [(7, ["a", "b"]), (8, ["a"])]


def test_a_transaction_that_fragments_cut_is_given_whole() -> None:
    batches = WatchBatches(FIRST)
    assert taken(batches, answer(seen("a", 7), seen("b", 9), fragment=True)) == [(7, ["a"])]
    assert taken(batches, answer(seen("c", 9), fragment=True)) == []
    assert taken(batches, answer(seen("d", 9), seen("a", 10))) == [(9, ["b", "c", "d"]), (10, ["a"])]


def test_a_revision_of_which_a_broken_stream_left_half_is_not_given_and_comes_again() -> None:
    batches = WatchBatches(FIRST)
    assert taken(batches, answer(seen("a", 7), seen("b", 9), fragment=True)) == [(7, ["a"])]
    assert batches.begin() == 7
    assert taken(batches, answer(seen("a", 7), seen("b", 9), seen("c", 9))) == [(9, ["b", "c"])]


def test_a_stream_begins_one_revision_early_and_what_comes_of_it_is_not_given_again() -> None:
    batches = WatchBatches(FIRST)
    assert batches.begin() == FIRST - 1
    assert taken(batches, answer(seen("a", FIRST - 1), seen("a", FIRST))) == [(FIRST, ["a"])]
    assert WatchBatches(Revision(1)).begin() == 1


def test_a_progress_notification_moves_the_start_revision_of_the_next_stream() -> None:
    batches = WatchBatches(FIRST)
    assert taken(batches, answer(revision=42)) == []
    assert batches.begin() == 42


def test_neither_the_creation_of_a_watch_nor_the_header_of_events_is_progress() -> None:
    batches = WatchBatches(FIRST)
    taken(batches, etcd_pb2.WatchResponse(created=True, header=etcd_pb2.ResponseHeader(revision=42)))
    assert batches.begin() == FIRST - 1
    taken(batches, answer(seen("a", 7), revision=42))
    assert batches.begin() == 7


def test_progress_never_goes_back() -> None:
    batches = WatchBatches(Revision(100))
    assert taken(batches, answer(revision=42)) == []
    assert batches.begin() == 99


def test_a_delete_has_no_value_and_an_empty_value_is_none_the_less_a_put() -> None:
    batches = WatchBatches(FIRST)
    (batch,) = batches.take(answer(seen("a", 7, None), seen("b", 7, b"")))
    assert batch.events == (Event("delete", "a", b"", Revision(7)), Event("put", "b", b"", Revision(7)))


TRANSACTIONS = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), max_size=8)
# Of each, how many events it brings before it breaks, and how many one answer holds.
BROKEN_STREAMS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), max_size=4)


def stream(transactions: Sequence[WatchBatch], batches: WatchBatches, events_max: int, piece: int) -> Iterator[WatchBatch]:
    """What one stream gives. Its answers are fragments of one answer wherever they cut a transaction, as etcd has it."""
    start = batches.begin()
    events = [seen(event.key, batch.revision) for batch in transactions for event in batch.events if batch.revision >= start]
    for index in range(0, min(events_max, len(events)), piece):
        part, rest = events[index : index + piece], events[index + piece :]
        yield from batches.take(answer(*part, fragment=bool(rest) and rest[0].kv.mod_revision == part[-1].kv.mod_revision))
    if events_max >= len(events):
        yield from batches.take(answer(revision=max(start, *(batch.revision for batch in transactions), 0)))


@given(keys=TRANSACTIONS, broken=BROKEN_STREAMS, piece=st.integers(1, 5))
def test_over_any_streams_each_transaction_is_given_once_whole_and_in_order(
    keys: list[list[str]], broken: list[tuple[int, int]], piece: int
) -> None:
    transactions = [
        WatchBatch(revision, tuple(Event("put", key, b"", revision) for key in written))
        for n, written in enumerate(keys)
        for revision in [Revision(FIRST + 2 * n)]
    ]
    batches = WatchBatches(FIRST)
    given = [batch for events_max, size in broken for batch in stream(transactions, batches, events_max, size)]
    assert [*given, *stream(transactions, batches, 1000, piece)] == transactions
