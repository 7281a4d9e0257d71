from __future__ import annotations

from collections.abc import Iterator

import pytest
from grpc import StatusCode

from gateway import error_codes
from gateway.error_codes import WIRE_CODES, wire_codes
from metadata import errors
from metadata.errors import (
    Corrupt,
    FencedLeaderEpoch,
    NotLeader,
    OutcomeUnknown,
    Throttled,
    TidelogError,
    UnknownLeaderEpoch,
    UnknownTopic,
)


def classes(kind: type[TidelogError] = TidelogError) -> Iterator[type[TidelogError]]:
    if kind.__module__ in {errors.__name__, error_codes.__name__}:
        yield kind
        for child in kind.__subclasses__():
            yield from classes(child)


EVERY_CLASS = sorted(set(classes()), key=lambda kind: kind.__name__)
KAFKA_RETRIABLE = {5, 6, 7, 15, 16, 56, 74, 75, 89}


def test_every_class_of_the_tree_has_a_row_of_its_own_and_no_row_is_left_over() -> None:
    assert set(WIRE_CODES) == set(EVERY_CLASS)
    assert len(EVERY_CLASS) > 25


@pytest.mark.parametrize("kind", EVERY_CLASS, ids=lambda kind: kind.__name__)
def test_a_kafka_client_retries_exactly_what_is_retryable(kind: type[TidelogError]) -> None:
    assert (WIRE_CODES[kind].kafka in KAFKA_RETRIABLE) == kind.retryable


@pytest.mark.parametrize("kind", EVERY_CLASS, ids=lambda kind: kind.__name__)
def test_a_client_that_retries_on_unavailable_never_writes_twice(kind: type[TidelogError]) -> None:
    codes = WIRE_CODES[kind]
    if codes.grpc in {StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED} or codes.http in {429, 503}:
        assert kind.nothing_was_written
        assert kind.retryable


@pytest.mark.parametrize("kind", EVERY_CLASS, ids=lambda kind: kind.__name__)
def test_codes_are_unique_words_that_stay(kind: type[TidelogError]) -> None:
    assert [other for other in EVERY_CLASS if other.code == kind.code] == [kind]
    assert kind.code == kind.code.upper()


def test_only_an_unknown_outcome_is_a_deadline_exceeded() -> None:
    exceeded = {kind for kind, codes in WIRE_CODES.items() if codes.grpc is StatusCode.DEADLINE_EXCEEDED}
    assert exceeded == {OutcomeUnknown}
    assert {kind for kind, codes in WIRE_CODES.items() if codes.http == 504} == {OutcomeUnknown}


def test_a_class_from_elsewhere_answers_as_its_parent_does() -> None:
    class MovedAway(NotLeader):
        code = "MOVED_AWAY"

    assert wire_codes(MovedAway("it went")) == WIRE_CODES[NotLeader]


def test_the_codes_that_users_know_by_heart() -> None:
    assert wire_codes(UnknownTopic("x")).http == 404
    assert wire_codes(Throttled("x")).http == 429
    assert wire_codes(Corrupt("x")).grpc is StatusCode.DATA_LOSS
    assert [wire_codes(kind("x")).kafka for kind in (FencedLeaderEpoch, UnknownLeaderEpoch)] == [74, 75]


@pytest.mark.parametrize(
    ("kind", "kafka"),
    [
        (errors.NoCoordinator, 15),
        (errors.NotCoordinator, 16),
        (errors.StaleGeneration, 22),
        (errors.InconsistentProtocol, 23),
        (errors.InvalidGroupName, 24),
        (errors.UnknownMember, 25),
        (errors.RebalanceInProgress, 27),
        (errors.GroupNotEmpty, 68),
        (errors.UnknownGroup, 69),
        (errors.MemberIdRequired, 79),
        (errors.GroupFull, 81),
        (errors.InstanceFenced, 82),
    ],
)
def test_what_a_consumer_group_is_told_has_kafkas_codes(kind: type[TidelogError], kafka: int) -> None:
    assert wire_codes(kind("x")).kafka == kafka


def test_an_old_generation_is_a_conflict_over_http_and_aborted_over_grpc() -> None:
    for kind in (errors.StaleMember, errors.UnknownMember, errors.StaleGeneration, errors.RebalanceInProgress):
        assert (wire_codes(kind("x")).http, wire_codes(kind("x")).grpc) == (409, StatusCode.ABORTED)
