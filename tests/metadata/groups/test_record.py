"""A consumer group and its committed offsets, as they lie in the metadata store."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from metadata.errors import Corrupt, InvalidArgument, TidelogError, TooLarge
from metadata.groups.model import (
    Generation,
    Group,
    GroupPhase,
    InstanceId,
    Member,
    MemberId,
    Protocol,
)
from metadata.groups.offsets import CommittedOffset, decode_offset, encode_offset, why_not
from metadata.groups.reconciliation.group import ReconciledGroup
from metadata.groups.reconciliation.model import ConsumerGroup, ConsumerMember, GroupTopic
from metadata.groups.record import check_group_size, decode_group, encode_group, encode_handover
from metadata.groups.settings import GroupSettings
from metadata.model import Revision, SessionId, TopicId
from metadata.store.interface import KeyValue
from tests.kit.metadata.played_group import REBALANCE_MS, SESSION_MS, Played, request, stable

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PROTOCOLS = st.builds(Protocol, TEXTS, st.binary(max_size=50))
MEMBERS = st.builds(
    Member,
    TEXTS.map(MemberId),
    TEXTS.map(InstanceId),
    TEXTS,
    TEXTS,
    st.integers(1, 2**31),
    st.integers(1, 2**31),
    st.lists(PROTOCOLS, max_size=3).map(tuple),
    st.binary(max_size=50),
)
GROUPS = st.builds(
    lambda phase, generation, names, leader, members, at: Group(
        phase=phase,
        generation=Generation(generation),
        protocol_type=names[0],
        protocol=names[1],
        leader=MemberId(leader),
        members={member.member_id: member for member in members},
        changed_at_ms=at,
    ),
    st.sampled_from(GroupPhase),
    st.integers(0, 2**31 - 1),
    st.tuples(TEXTS, TEXTS),
    TEXTS,
    st.lists(MEMBERS, max_size=4),
    st.integers(0, 2**42),
)


def kept(value: bytes, key: str = "/tidelog/groups/g") -> KeyValue:
    return KeyValue(key, value, Revision(1), Revision(1), 1)


def stored_part(group: Group) -> tuple[object, ...]:
    return (
        group.phase,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader,
        dict(group.members),
        group.changed_at_ms,
    )


@given(group=GROUPS)
def test_a_stored_group_is_read_back(group: Group) -> None:
    read = decode_group(kept(encode_group(group, SessionId(7))), now_ms=5_000)
    assert stored_part(read) == stored_part(group)
    assert list(read.members) == list(group.members), "the order decides who leads"
    assert (read.barrier is not None) == (group.phase is GroupPhase.PREPARING)
    assert not read.joining
    assert not read.syncing


@given(group=GROUPS)
def test_a_rebalance_that_begins_with_a_new_coordinator_ends_within_the_longest_rebalance_timeout(group: Group) -> None:
    read = decode_group(kept(encode_group(group, SessionId(7))), now_ms=5_000)
    longest_ms = max((member.rebalance_timeout_ms for member in group.members.values()), default=0)
    if read.barrier is not None:
        assert (read.barrier.opens_ms, read.barrier.first) == (5_000 + longest_ms, False)
    if read.unsynced:
        assert read.phase is GroupPhase.COMPLETING
        assert read.sync_by_ms == 5_000 + longest_ms


def test_a_group_lies_in_the_store_as_the_documentation_says() -> None:
    member = Member(
        MemberId("c1-x"), InstanceId(""), "c1", "10.0.0.7", 45_000, 300_000, (Protocol("range", b"\0\1"),), assignment=b"\2"
    )
    group = Group(
        phase=GroupPhase.STABLE,
        generation=Generation(3),
        protocol_type="consumer",
        protocol="range",
        leader=MemberId("c1-x"),
        members={member.member_id: member},
        changed_at_ms=9,
    )
    assert encode_group(group, SessionId(17)) == (
        b'{"format_version":1,"coordinator":17,"phase":"Stable","generation":3,"protocol_type":"consumer","protocol":"range",'
        b'"leader":"c1-x","changed_at_ms":9,"members":[{"member_id":"c1-x","instance_id":"","client_id":"c1",'
        b'"client_host":"10.0.0.7","session_timeout_ms":45000,"rebalance_timeout_ms":300000,"protocols":[["range","AAE="]],'
        b'"assignment":"Ag=="}]}'
    )


def test_a_handover_records_the_members_of_a_group_and_their_remaining_session_times() -> None:
    played = stable(*[request() for _ in range(4)])
    played.leave("m4")
    played.join(request("m1"))
    played.join(request())
    before = replace(played.group, alone_from_ms=played.now_ms + 500)
    at_ms = played.now_ms
    silent_at_ms = {MemberId(f"m{number}"): at_ms + 500 + left_ms for number, left_ms in [(1, 1), (2, 7_000), (3, 1), (5, 1)]}
    reported = encode_handover(before, SessionId(7), stored=played.stored[-1], silent_at_ms=silent_at_ms, now_ms=at_ms)
    assert reported is not None
    read = decode_group(kept(reported), now_ms=90_000, proof_ms=3_000)
    assert (read.phase, read.generation, read.leader) == (GroupPhase.PREPARING, 1, "m1")
    assert list(read.members) == ["m1", "m2", "m3"], "the new one does not know its id"
    assert read.silent_in_ms == {"m1": SESSION_MS, "m2": 7_000, "m3": SESSION_MS // 2}, "m1 waits"
    assert read.alone_from_ms == 90_500, "there is no need to wait for the one that has handed it over"
    assert read.barrier == (90_500, 90_500 + REBALANCE_MS, False)


def test_a_handover_without_departed_members_equals_the_stored_record() -> None:
    played = stable(request(), request())
    played.join(request(played.announced(played.join(request(id_required=True)))))
    stored = played.stored[-1]
    reported = encode_handover(played.group, SessionId(7), stored=stored, silent_at_ms={}, now_ms=played.now_ms)
    assert reported is not None
    read = decode_group(kept(reported), now_ms=90_000, proof_ms=3_000)
    assert stored_part(read) == stored_part(stored)
    assert read.silent_in_ms == {"m1": SESSION_MS, "m2": SESSION_MS}


@pytest.mark.parametrize("also", ["nothing", "who is named leaves", "who is unnamed hangs up"])
def test_a_member_that_does_not_know_its_id_is_none_of_a_record_that_was_written_while_it_waited(also: str) -> None:
    played = stable(request(), request())
    newcomer = played.join(request())
    stored = played.group
    assert list(stored.members) == ["m1", "m2", "m3"]
    assert list(decode_group(kept(encode_group(stored, SessionId(7))), now_ms=0).members) == ["m1", "m2"]
    if also == "who is named leaves":
        played.leave("m2")
    elif also == "who is unnamed hangs up":
        played.join(request("m2", rebalance_ms=1))
        played.hang_up(newcomer)
    reported = encode_handover(played.group, SessionId(7), stored=stored, silent_at_ms={}, now_ms=played.now_ms)
    assert reported is not None
    read = decode_group(kept(reported), now_ms=90_000, proof_ms=3_000)
    left = ["m1"] if also == "who is named leaves" else ["m1", "m2"]
    assert (list(read.members), list(read.silent_in_ms)) == (left, left)
    if also == "who is unnamed hangs up":
        assert read.members == {at: stored.members[MemberId(at)] for at in left}, (
            "no member of the generation has gone: it goes as it was stored"
        )


def test_a_newcomer_for_which_the_record_has_no_room_is_refused_before_it_waits() -> None:
    played = stable(request(), request())
    played.join(request())
    size = len(encode_group(replace(played.group, unnamed=frozenset()), SessionId(0)))
    check_group_size(played.group, GroupSettings(group_bytes_max=size, group_metadata_bytes_max=1))
    with pytest.raises(TooLarge, match="3 members"):
        check_group_size(played.group, GroupSettings(group_bytes_max=size - 1, group_metadata_bytes_max=1))


def test_of_a_group_at_rest_or_whose_first_members_gather_nothing_is_handed_over() -> None:
    gathering = Played()
    gathering.join(request(instance="i"))
    for group in (stable(request()).group, gathering.group, Group()):
        assert encode_handover(group, SessionId(7), stored=group, silent_at_ms={}, now_ms=1_000) is None
        read = decode_group(kept(encode_group(group, SessionId(7))), now_ms=90_000, proof_ms=3_000)
        assert read.alone_from_ms == 93_000


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"{}", b'{"format_version":1}', b"\xff", b'"\xff"'])
def test_a_value_that_is_no_group_is_corrupt(value: bytes) -> None:
    with pytest.raises(Corrupt, match="/tidelog/groups/g holds no consumer group"):
        decode_group(kept(value), now_ms=0)


def test_fields_of_a_later_version_are_skipped_and_a_later_format_is_refused() -> None:
    stored = msgspec.json.decode(encode_group(Group(), SessionId(1)))
    assert stored_part(decode_group(kept(msgspec.json.encode(stored | {"later": 1})), now_ms=0)) == stored_part(Group())
    with pytest.raises(Corrupt, match=r"newer version of Tidelog \(format 3\)"):
        decode_group(kept(msgspec.json.encode(stored | {"format_version": 3})), now_ms=0)


@given(group=GROUPS, bound=st.integers(1, 1500))
def test_a_group_fits_exactly_where_its_record_does(group: Group, bound: int) -> None:
    fits = len(encode_group(group, SessionId(0))) <= bound
    try:
        check_group_size(group, GroupSettings(group_bytes_max=bound, group_metadata_bytes_max=1))
    except TooLarge:
        assert not fits
    else:
        assert fits


@given(offset=st.integers(0, 2**63 - 1), epoch=st.integers(-1, 2**31), metadata=TEXTS, at=st.integers(0, 2**42))
def test_a_committed_offset_is_read_back(offset: int, epoch: int, metadata: str, at: int) -> None:
    committed = CommittedOffset(offset=offset, leader_epoch=epoch, metadata=metadata, committed_at_ms=at)
    assert decode_offset(kept(encode_offset(committed))) == committed


@pytest.mark.parametrize("value", [b"", b"{}", b'{"offset":"1"}', b"\xff"])
def test_a_value_that_is_no_committed_offset_is_corrupt(value: bytes) -> None:
    with pytest.raises(Corrupt, match="holds no committed offset"):
        decode_offset(kept(value))


@pytest.mark.parametrize(
    ("committed", "refused"),
    [
        (CommittedOffset(offset=0, committed_at_ms=0), None),
        (CommittedOffset(offset=-1, committed_at_ms=0), InvalidArgument),
        (CommittedOffset(offset=0, leader_epoch=-2, committed_at_ms=0), InvalidArgument),
        (CommittedOffset(offset=0, metadata="a" * 4096, committed_at_ms=0), None),
        (CommittedOffset(offset=0, metadata="ä" * 2049, committed_at_ms=0), TooLarge),
    ],
)
def test_which_offsets_may_be_committed(committed: CommittedOffset, refused: type[TidelogError] | None) -> None:
    why = why_not(committed, GroupSettings())
    assert (type(why) if why is not None else None) is refused


def test_members_that_may_not_read_the_same_topics_share_a_set_in_the_record() -> None:
    topics = {f"orders-{number:030}": GroupTopic(TopicId(f"{number:032x}"), 1) for number in range(500)}
    barred = frozenset(topics)

    def group(count: int, unreadable: frozenset[str]) -> ReconciledGroup:
        members = [
            ConsumerMember(member_id=MemberId(f"m{number}"), rebalance_timeout_ms=1, pattern="orders.*", unreadable=unreadable)
            for number in range(count)
        ]
        consumer = ConsumerGroup(topics=topics, members={each.member_id: each for each in members})
        return ReconciledGroup(consumer=consumer)

    stored = encode_group(group(30, barred), SessionId(1))
    assert len(stored) < len(encode_group(group(30, frozenset()), SessionId(1))) + 60 * len(topics)
    read = decode_group(kept(stored), now_ms=0)
    assert isinstance(read, ReconciledGroup)
    assert {each.unreadable for each in read.consumer.members.values()} == {barred}
