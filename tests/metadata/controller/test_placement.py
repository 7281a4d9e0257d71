"""Placement: balanced, sticky, spread over racks, and never a partition without a leader while a broker can take it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.cluster.broker_registry import Candidate
from metadata.controller import placement
from metadata.controller.placement import Placement, is_balanced
from metadata.model import Partition, SessionId, TopicId, TopicPartition

TOPICS = [TopicId(letter * 32) for letter in "abc"]


def partitions(count: int, topic: TopicId = TOPICS[0]) -> list[TopicPartition]:
    return [TopicPartition(topic, Partition(number)) for number in range(count)]


def brokers(count: int, racks: str = "") -> list[Candidate]:
    return [Candidate(SessionId(number), racks[number - 1] if racks else "") for number in range(1, count + 1)]


def placement_of(
    leaders: Mapping[TopicPartition, SessionId | None],
    candidates: Sequence[Candidate],
    *,
    arriving: Mapping[TopicPartition, SessionId] | None = None,
    moves_max: int | None = None,
) -> Placement:
    """`leaders` are all partitions with the session that leads each; None, or one that is no candidate: no leader."""
    led: dict[SessionId, dict[TopicId, set[TopicPartition]]] = defaultdict(lambda: defaultdict(set))
    present = {candidate.session for candidate in candidates}
    for partition, session in leaders.items():
        if session is not None:
            led[session][partition.topic_id].add(partition)
    leaderless = [partition for partition, session in leaders.items() if session not in present]
    on_their_way = (arriving or {}).items()
    return placement.place(led, leaderless, candidates, arriving=on_their_way, moves_max=moves_max)


def after(leaders: Mapping[TopicPartition, SessionId | None], placement: Placement) -> dict[TopicPartition, SessionId | None]:
    return {**leaders, **placement.given, **placement.moved}


def test_new_partitions_are_dealt_out_evenly_topic_by_topic() -> None:
    leaders: dict[TopicPartition, SessionId | None] = {partition: None for topic in TOPICS for partition in partitions(4, topic)}
    placement = placement_of(leaders, brokers(2))
    assert placement.moved == {}
    for topic in TOPICS:
        assert Counter(session for partition, session in placement.given.items() if partition.topic_id == topic) == {1: 2, 2: 2}


def test_partitions_that_a_dead_broker_led_go_to_the_others_and_nothing_else_moves() -> None:
    names = partitions(9)
    leaders = {partition: SessionId(1 + number % 3) for number, partition in enumerate(names)}
    placement = placement_of(leaders, brokers(2))
    assert placement.moved == {}
    assert set(placement.given) == {partition for partition, session in leaders.items() if session == 3}
    assert Counter(after(leaders, placement).values()) == {1: 5, 2: 4}


def test_a_broker_that_comes_is_given_its_share_and_no_more() -> None:
    leaders = {partition: SessionId(1 + number % 2) for number, partition in enumerate(partitions(9))}
    placement = placement_of(leaders, brokers(3))
    assert placement.given == {}
    assert set(placement.moved.values()) == {3}
    assert len(placement.moved) == 3


def test_a_draining_broker_gives_everything_away_and_is_given_nothing() -> None:
    leaders: dict[TopicPartition, SessionId | None] = {
        partition: SessionId(1 + number % 2) for number, partition in enumerate(partitions(4))
    }
    leaders[TopicPartition(TOPICS[1], Partition(0))] = None
    placement = placement_of(leaders, [Candidate(SessionId(1), draining=True), Candidate(SessionId(2))])
    assert set(after(leaders, placement).values()) == {2}


def test_brokers_that_all_drain_go_on_leading() -> None:
    leaders: dict[TopicPartition, SessionId | None] = dict.fromkeys(partitions(2))
    placement = placement_of(leaders, [Candidate(SessionId(1), draining=True)])
    assert set(placement.given.values()) == {1}
    assert placement_of(after(leaders, placement), [Candidate(SessionId(1), draining=True)]) == Placement({}, {})


def test_without_brokers_nothing_is_decided() -> None:
    assert placement_of({partitions(1)[0]: SessionId(1)}, []) == Placement({}, {})


def test_the_partitions_of_a_topic_are_spread_over_racks_before_brokers() -> None:
    leaders: dict[TopicPartition, SessionId | None] = dict.fromkeys(partitions(2))
    placement = placement_of(leaders, brokers(4, "aabb"))
    assert {"aabb"[session - 1] for session in placement.given.values()} == {"a", "b"}


def test_only_so_many_move_at_a_time() -> None:
    leaders = {partition: SessionId(1) for partition in partitions(10)}
    assert len(placement_of(leaders, brokers(2), moves_max=3).moved) == 3
    assert len(placement_of(leaders, brokers(2)).moved) == 5


clusters = st.tuples(
    st.lists(
        st.builds(Candidate, st.integers(1, 8).map(SessionId), st.sampled_from(["", "a", "b"]), st.booleans()),
        min_size=1,
        max_size=6,
        unique_by=lambda candidate: candidate.session,
    ),
    st.dictionaries(
        st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 12).map(Partition)),
        st.none() | st.integers(1, 8).map(SessionId),
        max_size=39,
    ),
)


@given(clusters)
def test_whatever_the_cluster_it_is_balanced_by_as_few_moves_as_that_takes(
    cluster: tuple[list[Candidate], dict[TopicPartition, SessionId | None]],
) -> None:
    candidates, leaders = cluster
    placement = placement_of(leaders, candidates)
    taking = {candidate.session for candidate in candidates if not candidate.draining} or {
        candidate.session for candidate in candidates
    }
    led = after(leaders, placement)
    loads = Counter(dict.fromkeys(taking, 0))
    loads.update(session for session in led.values() if session is not None)
    assert set(loads) == taking
    assert max(loads.values()) - min(loads.values()) <= 1
    before = Counter(session for session in leaders.values() if session in taking)
    share, rest = divmod(len(leaders), len(taking))
    quotas = sorted((share + (n < rest) for n in range(len(taking))), reverse=True)
    too_much = sum(
        max(0, held - quota) for held, quota in zip(sorted((before[s] for s in taking), reverse=True), quotas, strict=True)
    )
    present = {candidate.session for candidate in candidates}
    leaving = sum(session in present - taking for session in leaders.values())
    assert len(placement.moved) == too_much + leaving
    assert placement_of(led, candidates) == Placement({}, {}), "once placed, nothing is left to do"


@given(clusters, st.randoms())
def test_the_order_of_the_question_does_not_matter(
    cluster: tuple[list[Candidate], dict[TopicPartition, SessionId | None]], order: object
) -> None:
    candidates, leaders = cluster
    assert placement_of(dict(reversed(leaders.items())), candidates[::-1]) == placement_of(leaders, candidates)


@given(clusters, st.integers(0, 2**39 - 1))
def test_a_partition_that_is_on_its_way_counts_like_one_that_has_arrived(
    cluster: tuple[list[Candidate], dict[TopicPartition, SessionId | None]], which: int
) -> None:
    candidates, leaders = cluster
    present = {candidate.session for candidate in candidates}
    arriving = {p: s for n, (p, s) in enumerate(leaders.items()) if s is not None and s in present and which >> n & 1}
    arrived = {partition: session for partition, session in leaders.items() if partition not in arriving}
    assert placement_of(arrived, candidates, arriving=arriving) == placement_of(leaders, candidates)


@pytest.mark.parametrize("count", [1, 7, 100])
def test_one_broker_leads_everything(count: int) -> None:
    leaders: dict[TopicPartition, SessionId | None] = dict.fromkeys(partitions(count))
    assert set(placement_of(leaders, brokers(1)).given.values()) == {1}


@given(
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=5),
)
def test_is_balanced_agrees_with_whether_a_placement_would_move_anything(brokers: list[tuple[int, bool]]) -> None:
    candidates = [Candidate(SessionId(number), draining=draining) for number, (_, draining) in enumerate(brokers, 1)]
    loads = {SessionId(number): load for number, (load, _) in enumerate(brokers, 1)}
    sessions = [session for session, load in loads.items() for _ in range(load)]
    leaders = dict(zip(partitions(len(sessions)), sessions, strict=True))
    assert is_balanced(loads, candidates) == (placement_of(leaders, candidates).moved == {})
