from __future__ import annotations

from gateway.http.groups import member_leader
from metadata.group_member.leader_assignment import subscribers
from metadata.groups.assignors import ASSIGNORS
from metadata.groups.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from metadata.groups.model import NO_INSTANCE, Generation, Joined, JoinedMember, MemberId

ME, OTHER = MemberId("http-1"), MemberId("sdk-2")


def joined(metadata: dict[MemberId, bytes], protocol: str = "range") -> Joined:
    members = tuple(JoinedMember(member, NO_INSTANCE, said) for member, said in metadata.items())
    return Joined(Generation(1), "consumer", protocol, ME, ME, members)


def test_every_assignor_is_offered_with_nothing_owned() -> None:
    offered = member_leader.offers(["orders"], member_leader.ASSIGNORS_OFFERED)
    assert {protocol.name for protocol in offered} == ASSIGNORS.keys()
    assert offered[0].name == "cooperative-sticky"
    for protocol in offered:
        assert decode_subscription(protocol.metadata) == Subscription(("orders",), {}, -1)


def test_the_leader_remembers_in_its_own_assignment_what_it_saw() -> None:
    reported = joined(
        {ME: encode_subscription(Subscription(("a",))), OTHER: encode_subscription(Subscription(("a", "b", "later")))}
    )
    made = member_leader.assignments(reported, subscribers(reported), {"a": 3, "b": 1, "later": 0})
    assert member_leader.assigned(made[ME]) == ([("a", 0), ("a", 1)], {"a": 3, "b": 1, "later": 0})
    assert member_leader.assigned(made[OTHER]) == ([("a", 2), ("b", 0)], {})
    assert decode_assignment(made[ME]) == {"a": [0, 1]}, "as any client of Kafka's protocol reads it"


def test_topics_that_are_too_much_to_remember_are_left_out() -> None:
    topics = tuple(f"{number:0200}" for number in range(200))
    reported = joined({ME: encode_subscription(Subscription(topics))})
    made = member_leader.assignments(reported, subscribers(reported), dict.fromkeys(topics, 1))
    found = member_leader.assigned(made[ME])
    assert (len(found.partitions), found.seen) == (200, {})


def test_a_member_whose_subscription_can_not_be_read_spoils_nothing() -> None:
    reported = joined({ME: encode_subscription(Subscription(("a",))), OTHER: b"\xff"})
    made = member_leader.assignments(reported, subscribers(reported), {"a": 2})
    assert member_leader.assigned(made[ME]).partitions == [("a", 0), ("a", 1)]


def test_an_assignment_of_another_make_is_taken_as_far_as_it_can_be() -> None:
    strange = encode_assignment({"b": [1], "a": [2, -1, 2, 0]}, b"of my own")
    assert member_leader.assigned(strange) == ([("a", 0), ("a", 2), ("b", 1)], {})
    assert member_leader.assigned(b"") == ([], {})
    assert member_leader.assigned(b"\x00") == ([], {})
    assert member_leader.assigned(encode_assignment({"a": [0]}, b"tidelog:seen:\x00")) == ([("a", 0)], {})
