"""The coordinator of KIP-848 as a state machine: epochs, fencing, static members, and that no partition has two owners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metadata.errors import (
    FencedMemberEpoch,
    GroupFull,
    InstanceFenced,
    InvalidArgument,
    InvalidRegularExpression,
    StaleMember,
    StaleMemberEpoch,
    TidelogError,
    UnknownMember,
    UnreleasedInstance,
    UnsupportedAssignor,
)
from metadata.groups.model import InstanceId, MemberId
from metadata.groups.reconciliation.heartbeat import check_member_commit, heartbeat, refreshed, remove
from metadata.groups.reconciliation.model import (
    JOINING,
    LEAVING,
    LEAVING_FOR_NOW,
    NO_PARTITIONS,
    Beat,
    ConsumerGroup,
    GroupTopic,
    Heartbeat,
    MemberPrincipal,
    MemberState,
    Partitions,
    ReadableTopics,
    all_readable,
)
from metadata.model import Partition, TopicId, TopicPartition

TOPICS = {"orders": GroupTopic(TopicId("0" * 31 + "1"), 4), "users": GroupTopic(TopicId("0" * 31 + "2"), 2)}
A, B, C = MemberId("a"), MemberId("b"), MemberId("c")


def of(topic: str, *numbers: int) -> Partitions:
    return frozenset(TopicPartition(TOPICS[topic].topic_id, Partition(number)) for number in numbers)


class Groups:
    """A group, and the time since its beginning in heartbeats."""

    def __init__(self, topics: Mapping[str, GroupTopic] = TOPICS, *, members_max: int = 10) -> None:
        self.group = ConsumerGroup()
        self.topics = topics
        self.members_max = members_max
        self.readable: ReadableTopics = all_readable

    def beat(
        self, member_id: MemberId, epoch: int, owned: Partitions | None = None, *, view_changed: bool = True, **more: Any
    ) -> Beat:
        asked = Heartbeat(member_id=member_id, epoch=epoch, owned=owned, **more)
        self.group, answer = heartbeat(
            self.group, asked, self.topics, members_max=self.members_max, readable=self.readable, view_changed=view_changed
        )
        return answer

    def join(self, member_id: MemberId, *topics: str, **more: Any) -> Beat:
        terms: dict[str, Any] = {"topics": frozenset(topics or ("orders",)), "rebalance_timeout_ms": 60_000}
        return self.beat(member_id, JOINING, NO_PARTITIONS, **{**terms, **more})


def test_the_first_member_is_given_everything_in_epoch_1() -> None:
    groups = Groups()
    assert groups.join(A, "orders", "users") == Beat(A, 1, of("orders", 0, 1, 2, 3) | of("users", 0, 1))
    assert groups.beat(A, 1) == Beat(A, 1, None)
    assert not groups.group.is_reconciling


def test_a_partition_moves_only_after_its_owner_gave_it_up() -> None:
    groups = Groups()
    everything = groups.join(A).assignment
    assert groups.join(B) == Beat(B, 2, NO_PARTITIONS)
    kept = groups.beat(A, 1).assignment
    assert kept is not None
    assert len(kept) == 2
    assert groups.group.members[A].state is MemberState.UNREVOKED
    assert groups.beat(A, 1, everything) == Beat(A, 1, None), "it still owns what it shall give up"
    assert groups.beat(B, 2) == Beat(B, 2, None)
    assert groups.beat(A, 1, kept) == Beat(A, 2, None)
    assert groups.beat(B, 2) == Beat(B, 2, of("orders", 0, 1, 2, 3) - kept)
    assert not groups.group.is_reconciling


def test_the_others_are_given_what_a_member_leaves_behind() -> None:
    groups = Groups()
    groups.join(A)
    groups.join(B)
    assert groups.beat(A, LEAVING) == Beat(A, LEAVING)
    assert groups.beat(B, 2) == Beat(B, 3, of("orders", 0, 1, 2, 3))


def test_a_member_whose_time_is_over_is_removed_and_fenced() -> None:
    groups = Groups()
    groups.join(A)
    groups.group = remove(groups.group, [A], TOPICS)
    assert (groups.group.epoch, dict(groups.group.members)) == (2, {})
    with pytest.raises(UnknownMember):
        groups.beat(A, 1)
    assert groups.join(A).epoch == 3
    assert remove(groups.group, [B], TOPICS) is groups.group


def test_an_answer_that_was_lost_is_given_again() -> None:
    groups = Groups()
    groups.join(A)
    kept = of("orders", 0, 1)
    groups.join(B)
    assert groups.beat(A, 1).assignment == kept
    groups.beat(A, 1, kept)  # epoch 2, not received
    terms: dict[str, Any] = {"topics": frozenset({"orders"}), "rebalance_timeout_ms": 60_000}
    assert groups.beat(A, 1, kept, **terms) == Beat(A, 2, kept)


@pytest.mark.parametrize("epoch", [1, 3, 99])
def test_an_epoch_that_the_member_cannot_have_is_fenced(epoch: int) -> None:
    groups = Groups()
    groups.join(A)
    groups.join(B)
    groups.beat(A, 1, of("orders", 0, 1))
    before = groups.group
    with pytest.raises(FencedMemberEpoch):
        groups.beat(A, epoch, of("orders", 0, 1, 2, 3))
    assert groups.group is before


def test_a_member_that_joins_again_owns_nothing_and_is_given_its_target() -> None:
    groups = Groups()
    groups.join(A)
    groups.join(B)
    groups.beat(A, 1)
    assert groups.join(A) == Beat(A, 2, of("orders", 0, 1)), "the same epoch: nothing changed for the group"
    assert groups.beat(B, 2).assignment == of("orders", 2, 3)


def test_a_changed_subscription_and_a_grown_topic_raise_the_epoch() -> None:
    groups = Groups()
    groups.join(A)
    assert groups.beat(A, 1, topics=frozenset({"users"})).epoch == 1, "it has to give the other topic up first"
    assert groups.beat(A, 1, NO_PARTITIONS) == Beat(A, 2, of("users", 0, 1))
    assert groups.beat(A, 2, topics=frozenset({"users"})) == Beat(A, 2, None)
    groups.topics = {**TOPICS, "users": TOPICS["users"]._replace(partition_count=3)}
    assert groups.beat(A, 2) == Beat(A, 3, of("users", 0, 1, 2))
    before = groups.group
    groups.beat(A, 3)
    assert groups.group is before, "nothing is written for a heartbeat that changes nothing"


def test_a_topic_that_is_deleted_is_given_up() -> None:
    groups = Groups()
    groups.join(A, "orders", "users")
    groups.topics = {"orders": TOPICS["orders"]}
    assert groups.beat(A, 1).assignment == of("orders", 0, 1, 2, 3)
    assert groups.beat(A, 1, of("orders", 0, 1, 2, 3)).epoch == 2


def test_a_pattern_subscribes_to_topics_of_the_future() -> None:
    groups = Groups({"orders": TOPICS["orders"]})
    assert groups.join(A, topics=None, pattern="orders|us.*").assignment == of("orders", 0, 1, 2, 3)
    groups.topics = TOPICS
    assert groups.beat(A, 1).assignment == of("orders", 0, 1, 2, 3) | of("users", 0, 1)
    assert groups.beat(A, 2, pattern="", topics=frozenset({"users"})).assignment == of("users", 0, 1)
    with pytest.raises(InvalidRegularExpression):
        groups.beat(A, 2, pattern="(")


class Readers:
    """Who may read which topics; None: not known."""

    def __init__(self, **names: set[str] | None) -> None:
        self.names = names

    def readable(self, member: MemberPrincipal | None, names: frozenset[str]) -> frozenset[str] | None:
        own = self.names.get(member.principal) if member is not None else None
        return None if own is None else names & own


ANNA, BERT = MemberPrincipal("anna"), MemberPrincipal("bert")
ALL_PARTITIONS = of("orders", 0, 1, 2, 3) | of("users", 0, 1)


def with_readers(**names: set[str] | None) -> tuple[Groups, Readers]:
    readers = Readers(**names)
    groups = Groups()
    groups.readable = readers.readable
    return groups, readers


def test_a_pattern_subscribes_to_the_topics_that_its_member_may_read() -> None:
    groups, _ = with_readers(anna={"orders", "users"}, bert={"orders"})
    assert groups.join(B, topics=None, pattern=".*", principal=BERT).assignment == of("orders", 0, 1, 2, 3)
    assert groups.group.topics.keys() == {"orders"}
    groups.join(A, topics=None, pattern=".*", principal=ANNA)
    members = groups.group.members
    assert members[B].target < of("orders", 0, 1, 2, 3)
    assert members[A].target | members[B].target == ALL_PARTITIONS
    assert (members[A].unreadable, members[B].unreadable) == (frozenset(), frozenset({"users"}))
    before = groups.group
    for each in (before.epoch, before.epoch):
        groups.beat(A, each, principal=ANNA)
    assert groups.group is before, "rights that stay the same change nothing"


def test_a_pattern_follows_rights_that_are_revoked_and_granted() -> None:
    groups, readers = with_readers(anna={"orders", "users"}, bert={"orders", "users"})
    groups.join(A, topics=None, pattern=".*", principal=ANNA)
    groups.join(B, topics=None, pattern=".*", principal=BERT)
    epoch = groups.group.epoch
    readers.names["anna"] = {"orders"}
    groups.beat(B, 2, NO_PARTITIONS, principal=BERT)
    assert groups.group.epoch == epoch + 1, "the topics of the group are the same, but not those of a member"
    assert of("users", 0, 1) <= groups.group.members[B].target
    readers.names["anna"] = {"orders", "users"}
    groups.beat(B, 3, principal=BERT)
    assert groups.group.epoch == epoch + 2
    assert groups.group.members[A].unreadable == frozenset()


def test_a_topic_that_is_named_is_not_left_out_by_a_pattern_beside_it() -> None:
    groups, _ = with_readers(anna=set())
    assert groups.join(A, "users", pattern=".*", principal=ANNA).assignment == of("users", 0, 1)


def test_a_member_whose_rights_are_not_known_keeps_what_it_reads_and_gets_nothing_new() -> None:
    groups, readers = with_readers(anna={"orders", "users"}, bert={"orders"})
    groups.topics = {"orders": TOPICS["orders"]}
    groups.join(A, topics=None, pattern=".*", principal=ANNA)
    groups.join(B, topics=None, pattern=".*", principal=BERT)
    readers.names = {"anna": None, "bert": {"orders", "users"}}
    before = groups.group
    groups.beat(B, 2, principal=BERT)
    assert groups.group is before
    groups.topics = TOPICS
    groups.beat(B, 2, principal=BERT)
    members = groups.group.members
    assert of("users", 0, 1) <= members[B].target
    assert members[A].target
    assert members[A].target < of("orders", 0, 1, 2, 3)
    readers.names["anna"] = {"orders", "users"}
    groups.beat(A, 1, of("orders", 0, 1, 2, 3), principal=ANNA)
    assert groups.group.members[A].unreadable == frozenset()


@pytest.mark.parametrize("change", [{"pattern": "u.*"}, {"pattern": "orders", "principal": BERT}])
def test_a_new_pattern_or_principal_gets_nothing_of_others_while_its_rights_are_not_known(change: dict[str, Any]) -> None:
    groups, readers = with_readers(anna={"orders"}, bert={"orders", "users"})
    groups.join(B, topics=None, pattern=".*", principal=BERT)
    groups.join(A, topics=None, pattern="orders", principal=ANNA)
    readers.names = {}
    groups.beat(A, 2, NO_PARTITIONS, **{"principal": ANNA, **change})
    assert groups.group.members[A].target == NO_PARTITIONS
    assert groups.group.members[B].target == ALL_PARTITIONS


def test_a_member_of_a_record_that_names_no_principal_keeps_its_partitions_until_its_next_heartbeat() -> None:
    groups, _ = with_readers(anna={"orders"}, bert={"orders", "users"})
    groups.join(A, topics=None, pattern=".*", principal=None, rebalance_timeout_ms=1)
    groups.group = replace(
        groups.group,
        topics=TOPICS,
        members={A: replace(groups.group.members[A], target=ALL_PARTITIONS, assigned=ALL_PARTITIONS, unreadable=frozenset())},
    )
    assert refreshed(groups.group, TOPICS, groups.readable) is groups.group
    assert groups.beat(A, 1, principal=ANNA, view_changed=False).assignment == of("orders", 0, 1, 2, 3)


def test_most_members_choose_the_assignor() -> None:
    groups = Groups()
    groups.join(A, "orders", "users", assignor="range")
    assert groups.group.assignor == "range"
    groups.join(B, "orders", "users")
    assert groups.group.members[A].target == of("orders", 0, 1) | of("users", 0)
    groups.join(C, "orders", "users", assignor="uniform")
    assert groups.group.assignor == "uniform", "the first of equals"
    with pytest.raises(UnsupportedAssignor):
        groups.beat(C, 3, assignor="sticky")


def test_a_static_member_comes_back_under_another_id_without_a_new_epoch() -> None:
    groups = Groups()
    one, two = InstanceId("one"), InstanceId("two")
    groups.join(A, instance_id=one)
    groups.join(B, instance_id=two)
    kept = groups.beat(A, 1, instance_id=one).assignment
    groups.beat(A, 1, kept, instance_id=one)
    assert groups.beat(A, LEAVING_FOR_NOW, instance_id=one) == Beat(A, LEAVING_FOR_NOW)
    with pytest.raises(FencedMemberEpoch):
        groups.beat(A, 2, instance_id=one)
    assert groups.join(C, instance_id=one) == Beat(C, 2, kept)
    assert groups.group.members.keys() == {B, C}
    with pytest.raises(InstanceFenced):
        groups.beat(A, 2, instance_id=one)
    assert groups.beat(C, LEAVING, instance_id=one).epoch == LEAVING
    assert groups.group.epoch == 3


def test_an_instance_id_in_use_is_not_released_to_another_member() -> None:
    groups = Groups()
    one = InstanceId("one")
    groups.join(A, instance_id=one)
    with pytest.raises(UnreleasedInstance):
        groups.join(B, instance_id=one)
    assert groups.join(A, instance_id=one).epoch == 1
    with pytest.raises(UnknownMember):
        groups.beat(A, 1, instance_id=InstanceId("two"))


def test_only_a_member_in_its_present_epoch_commits() -> None:
    groups = Groups()
    check_member_commit(groups.group, MemberId(""), -1)
    groups.join(A)
    check_member_commit(groups.group, A, 1)
    for member_id, epoch, error in (
        (A, 0, StaleMemberEpoch),
        (A, 2, StaleMemberEpoch),
        (B, 1, UnknownMember),
        (MemberId(""), -1, UnknownMember),
    ):
        with pytest.raises(error):
            check_member_commit(groups.group, member_id, epoch)


@pytest.mark.parametrize(
    "wrong",
    [
        {"member_id": MemberId("")},
        {"member_id": MemberId("x" * 250)},
        {"epoch": -3},
        {"epoch": LEAVING_FOR_NOW},
        {"owned": None},
        {"owned": of("orders", 0)},
        {"rebalance_timeout_ms": None},
        {"rebalance_timeout_ms": 0},
        {"topics": None},
        {"topics": frozenset({"x" * (256 << 10), "y"})},
        {"rack": ""},
        {"instance_id": InstanceId("a\u202eb")},
    ],
)
def test_a_request_that_is_wrong_changes_nothing(wrong: dict[str, Any]) -> None:
    sound: dict[str, Any] = {
        "member_id": A,
        "epoch": JOINING,
        "owned": NO_PARTITIONS,
        "rebalance_timeout_ms": 1,
        "topics": frozenset(),
    }
    heartbeat(ConsumerGroup(), Heartbeat(**sound), TOPICS, members_max=1)
    with pytest.raises(InvalidArgument):
        heartbeat(ConsumerGroup(), Heartbeat(**{**sound, **wrong}), TOPICS, members_max=1)


def test_members_of_a_group_are_bounded() -> None:
    groups = Groups(members_max=1)
    groups.join(A)
    with pytest.raises(GroupFull):
        groups.join(B)
    groups.join(A)


# ── any number of members, with answers that are lost ───────────────────────────────────────────────────────────────────────


class Client:
    """A member as a client implements it: it gives up at once or later, and says everything again after a lost answer."""

    def __init__(self, name: str, instance_id: str) -> None:
        self.name = name
        self.instance_id = InstanceId(instance_id)
        self.life = 0
        self.topics = frozenset({"orders"})
        # Empty: none. Tests of rights use one that matches all topics.
        self.pattern = ""
        self.epoch = JOINING
        self.owned: Partitions = NO_PARTITIONS
        self.reported: Partitions = NO_PARTITIONS
        self.says_all = True
        self.joined = False

    @property
    def member_id(self) -> MemberId:
        return MemberId(f"{self.name}-{self.life}")

    def beat(self, groups: Groups, *, is_lost: bool, gives_up: bool) -> None:
        if gives_up:
            self.owned &= self.reported
        more: dict[str, Any] = {}
        if self.says_all or self.epoch == JOINING:
            more = {"topics": self.topics, "pattern": self.pattern, "rebalance_timeout_ms": 1_000}
        principal = MemberPrincipal(self.name)
        try:
            answer = groups.beat(self.member_id, self.epoch, self.owned, instance_id=self.instance_id, principal=principal, **more)
        except UnreleasedInstance:
            return
        except (StaleMember, InstanceFenced):
            self.restart()
            return
        self.joined = True
        self.says_all = is_lost
        if is_lost:
            return
        self.epoch = answer.epoch
        if answer.assignment is not None:
            self.reported = answer.assignment
            self.owned |= self.reported if self.owned <= self.reported else self.owned & self.reported
        if self.owned <= self.reported:
            self.owned = self.reported

    def restart(self) -> None:
        self.epoch, self.owned, self.reported, self.says_all = JOINING, NO_PARTITIONS, NO_PARTITIONS, True


_steps = st.one_of(
    st.tuples(st.just("beat"), st.integers(0, 3), st.booleans(), st.booleans()),
    st.tuples(st.just("beat"), st.integers(0, 3), st.just(False), st.just(True)),
    st.tuples(st.sampled_from(["leave", "expire", "replace", "subscribe"]), st.integers(0, 3), st.booleans(), st.booleans()),
    st.tuples(st.just("grow"), st.integers(1, 6), st.booleans(), st.booleans()),
    st.tuples(st.sampled_from(["pattern", "rights"]), st.integers(0, 3), st.booleans(), st.booleans()),
)


@pytest.mark.slow
@given(steps=st.lists(_steps, max_size=80))
@settings(max_examples=150)
def test_no_partition_has_two_owners_and_each_has_one_in_the_end(steps: list[tuple[str, int, bool, bool]]) -> None:
    groups, readers = with_readers(**{name: {"orders", "users"} for name in "abcd"})
    clients = [Client("a", ""), Client("b", ""), Client("c", "static"), Client("d", "")]
    for act, number, one, two in steps:
        if act == "grow":
            count = max(number, groups.topics["orders"].partition_count)
            groups.topics = {**groups.topics, "orders": groups.topics["orders"]._replace(partition_count=count)}
            continue
        client = clients[number]
        before = groups.group.epoch
        if act == "beat":
            client.beat(groups, is_lost=one, gives_up=two)
        elif act == "subscribe":
            client.topics, client.pattern = frozenset({"orders", "users"} if one else {"orders"}), ""
            client.says_all = True
        elif act == "pattern":
            client.topics, client.pattern = frozenset(), ".*"
            client.says_all = True
        elif act == "rights":
            readers.names[client.name] = {"orders", *(["users"] if one else [])} if two else None
        elif act == "leave" and client.member_id in groups.group.members and client.epoch > 0:
            epoch = LEAVING_FOR_NOW if client.instance_id and one else LEAVING
            groups.beat(client.member_id, epoch, instance_id=client.instance_id)
            client.restart()
        elif act == "expire":
            groups.group = remove(groups.group, [client.member_id], groups.topics, groups.readable)
            client.restart()  # its process lost the group, and knows it
        elif act == "replace" and client.instance_id:
            client.restart()
            client.life += 1
        check(groups, clients)
        assert groups.group.epoch >= before
    for name, own in readers.names.items():
        readers.names[name] = own or {"orders"}
    for _ in range(12):
        for client in clients:
            client.beat(groups, is_lost=False, gives_up=True)
            check(groups, clients)
        for stuck in [at for at, each in groups.group.members.items() if at not in {client.member_id for client in clients}]:
            groups.group = remove(groups.group, [stuck], groups.topics, groups.readable)
    group = groups.group
    assert not group.is_reconciling
    owned = [each for client in clients for each in client.owned]
    readable = {client.name: client.topics or readers.names[client.name] or set() for client in clients}
    for client in clients:
        assert {each.topic_id for each in client.owned} <= {TOPICS[name].topic_id for name in readable[client.name]}
    wanted = set().union(*readable.values())
    there = {
        (topic.topic_id, number)
        for name, topic in groups.topics.items()
        if name in wanted
        for number in range(topic.partition_count)
    }
    assert sorted((each.topic_id, each.partition) for each in owned) == sorted(there)
    assert {client.epoch for client in clients} == {group.epoch}


def check(groups: Groups, clients: list[Client]) -> None:
    held = [each for member in groups.group.members.values() for each in member.held]
    assert len(held) == len(set(held)), "the coordinator gave one partition to two members"
    owned = [each for client in clients for each in client.owned]
    assert len(owned) == len(set(owned)), "two clients read one partition"
    for member in groups.group.members.values():
        assert member.epoch <= groups.group.epoch
        assert not member.assigned & member.revoking


def test_the_target_is_the_same_where_nothing_changed() -> None:
    groups = Groups()
    groups.join(A)
    assert refreshed(groups.group, TOPICS) is groups.group
    with pytest.raises(TidelogError):
        groups.beat(B, 1)
