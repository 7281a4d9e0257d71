from __future__ import annotations

import msgspec
import pytest

from metadata.cluster.broker_registry import BrokerRegistration, encode_registration
from metadata.cluster.leadership import appointed, moving
from metadata.model import Partition, Revision, SessionId, TopicId, TopicPartition
from metadata.store.interface import Event, WatchBatch
from metadata.store.keys import KeyLayout
from tests.simulation.appointments import LandedProof, LandedSeal, Recorder, Writer, judge
from tests.simulation.archive_store import ArchiveStore
from tests.simulation.etcd_model import EtcdModel


def test_a_transaction_that_changed_nothing_is_not_taken_for_the_writer_of_its_revision() -> None:
    recorder = Recorder(ArchiveStore(lambda: 0, lambda topic, topic_id: True), EtcdModel(lambda: 0.0), KeyLayout())
    leader, controller = Writer("b2", SessionId(10)), Writer("b3", SessionId(9))
    recorder.wrote(Revision(209), leader)
    recorder.wrote(Revision(209), controller)  # it deleted a key that was gone already
    assert recorder._writers == {Revision(209): leader}


@pytest.mark.parametrize(
    ("unwritable_bytes", "proofs", "found"),
    [
        (10, [LandedProof("b2", Revision(2))], []),
        (10, [LandedProof("b2", Revision(1))], ["which has not written since 2"]),
        (10, [LandedProof("b2", Revision(4))], ["which has not written since 2"]),
        (10, [LandedProof("b3", Revision(2))], ["which has not written since 2"]),
        (0, [LandedProof("b2", Revision(2))], ["and has not said that it can't write"]),
    ],
    ids=["after it has written", "it wrote before", "it wrote too late", "another wrote", "no event said that it can't write"],
)
def test_a_broker_removes_only_who_can_not_write_and_after_it_has_written_itself(
    unwritable_bytes: int, proofs: list[LandedProof], found: list[str]
) -> None:
    layout = KeyLayout()
    key = layout.broker("b1")
    reported = encode_registration(BrokerRegistration(broker_id="b1", session=SessionId(1), unwritable_bytes=unwritable_bytes))
    transactions = [
        WatchBatch(Revision(revision), (Event("delete" if value is None else "put", key, value or b"", Revision(revision)),))
        for revision, value in ((2, reported), (3, None))
    ]
    judged = judge(transactions, {Revision(3): Writer("b2", SessionId(2))}, [], proofs, [], layout)
    assert [violation.evidence.partition(", ")[2].partition("), ")[2] for violation in judged] == found


@pytest.mark.parametrize(
    ("sealed", "lists_target", "found"),
    [
        ((1, 2), True, []),
        ((1,), True, ["session 2 was not sealed before"]),
        ((1, 2), False, ["to which it was to move, is not listed"]),
    ],
    ids=["sealed and listed", "not sealed", "not listed"],
)
def test_the_chosen_successor_of_a_dead_leader_is_sealed_and_listed_before_another_leads(
    sealed: tuple[int, ...], lists_target: bool, found: list[str]
) -> None:
    layout, partition = KeyLayout(), TopicPartition(TopicId("a" * 32), Partition(0))
    first = appointed(None, SessionId(1))
    asked = moving(first, SessionId(2))
    states = [first, asked, appointed(asked if lists_target else first, SessionId(3))]
    transactions = [
        WatchBatch(Revision(at), (Event("put", layout.partition(partition), msgspec.json.encode(state), Revision(at)),))
        for at, state in zip((2, 3, 9), states, strict=True)
    ]
    seals = [LandedSeal(SessionId(session), SessionId(3), Revision(5)) for session in sealed]
    judged = [violation.evidence for violation in judge(transactions, {}, seals, [], [], layout)]
    assert len(judged) == len(found)
    assert all(what in evidence for what, evidence in zip(found, judged, strict=True))
