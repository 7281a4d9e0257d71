"""The ledger of partitions: after any changes in any order it equals a ledger that is built from everything at once."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from metadata.cluster.broker_registry import Candidate
from metadata.cluster.leadership import FORMAT_VERSION, PartitionState, appointed, moving
from metadata.controller.ledger import Changes, PartitionLedger, StoredState
from metadata.controller.plan import plan
from metadata.model import Partition, Revision, SessionId, TopicId, TopicPartition

TOPICS = [TopicId(letter * 32) for letter in "ab"]
PARTITIONS = [TopicPartition(topic, Partition(number)) for topic in TOPICS for number in range(4)]
SESSIONS = [SessionId(number) for number in range(1, 5)]


def stored(leader: SessionId, to: SessionId | None, *, newer: bool) -> PartitionState:
    state = moving(appointed(None, leader), to)
    return msgspec.structs.replace(state, format_version=FORMAT_VERSION + 1) if newer else state


states = st.none() | st.builds(stored, st.sampled_from(SESSIONS), st.none() | st.sampled_from(SESSIONS), newer=st.booleans())
changes = st.tuples(
    st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 4), max_size=2),
    st.dictionaries(st.sampled_from(PARTITIONS), st.tuples(states, st.booleans()), max_size=4),
)
brokers = st.lists(st.builds(Candidate, st.sampled_from(SESSIONS), st.sampled_from("xy"), st.booleans()), max_size=4)


class Reported:
    """A ledger that applies changes, and everything that it has applied."""

    def __init__(self) -> None:
        self.ledger = PartitionLedger()
        self.counts: dict[TopicId, int] = {}
        self.states: dict[TopicPartition, StoredState | None] = {}
        self.unreadable: set[TopicPartition] = set()
        self.revision = 0

    def update(self, counts: dict[TopicId, int], reported: dict[TopicPartition, tuple[PartitionState | None, bool]]) -> None:
        self.revision += 1
        changed: dict[TopicPartition, StoredState | None] = {}
        unreadable: set[TopicPartition] = set()
        for partition, (state, readable) in reported.items():
            if not readable:  # what was read before stays known
                unreadable.add(partition)
                changed[partition] = self.states.get(partition)
            else:
                changed[partition] = (state, Revision(self.revision)) if state is not None else None
        self.counts |= counts
        self.states |= changed
        self.unreadable = self.unreadable - reported.keys() | unreadable
        self.ledger.apply(Changes(counts, changed, unreadable))

    def rebuilt(self) -> PartitionLedger:
        ledger = PartitionLedger()
        ledger.apply(Changes(self.counts, self.states, self.unreadable))
        return ledger


@given(st.lists(changes, max_size=8), brokers, st.sets(st.sampled_from(SESSIONS)))
def test_a_ledger_that_applied_changes_equals_a_rebuilt_one(
    happening: list[tuple[dict[TopicId, int], dict[TopicPartition, tuple[PartitionState | None, bool]]]],
    candidates: list[Candidate],
    sealed: set[SessionId],
) -> None:
    reported = Reported()
    for counts, states in happening:
        reported.update(counts, states)
    rebuilt = reported.rebuilt()
    assert vars(reported.ledger) == vars(rebuilt)
    registered = list({candidate.session: candidate for candidate in candidates}.values())
    assert plan(reported.ledger, registered, sealed) == plan(rebuilt, registered, sealed)


@given(st.lists(changes, max_size=8))
def test_every_partition_stands_in_one_place_and_its_leader_counts_it(
    happening: list[tuple[dict[TopicId, int], dict[TopicPartition, tuple[PartitionState | None, bool]]]],
) -> None:
    reported = Reported()
    for counts, states in happening:
        reported.update(counts, states)
    ledger = reported.ledger
    led = [partition for topics in ledger.led.values() for partitions in topics.values() for partition in partitions]
    assert len(led) == len(set(led)) == sum(ledger.loads.values())
    missing = list(ledger.missing())
    everything = [TopicPartition(topic, Partition(n)) for topic, count in reported.counts.items() for n in range(count)]
    for partition in everything:
        stored, unreadable = reported.states.get(partition), partition in reported.unreadable
        assert (partition in missing) == (stored is None and not unreadable)
        state = stored[0] if stored is not None else None
        alone = unreadable or (state is not None and state.format_version > FORMAT_VERSION)
        assert (partition in ledger.moving) == (state is not None and not alone and state.moving_to is not None)
        assert (partition in led) == (state is not None and not alone and state.moving_to is None)
        assert partition not in ledger.forgotten
    known = {partition for partition, stored in reported.states.items() if stored is not None} | reported.unreadable
    assert ledger.forgotten == known - set(everything)
