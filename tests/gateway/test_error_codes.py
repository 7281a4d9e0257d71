from __future__ import annotations

from collections.abc import Iterator

import pytest
from grpc import StatusCode

from gateway import error_codes
from gateway.error_codes import WIRE_CODES, KafkaApiGroup, kafka_code, wire_codes
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
KAFKA_GROUPS: tuple[KafkaApiGroup, ...] = ("produce", "fetch", "list_offsets", "group", "transaction", "admin")
# Codes after which a client of Kafka sends the same request again. 3 and 2 belong to them as well: Kafka retries them although they
# may be final, for its metadata may be late, and bytes may be damaged on the way.
KAFKA_RETRIABLE: dict[KafkaApiGroup, set[int]] = {
    "produce": {6, 7, 19, 56},
    "fetch": {0, 6, 56, 74, 75},
    "list_offsets": {6, 56, 74, 75},
    "group": {7, 15, 16},
    "transaction": {7, 15, 16, 51},
    "admin": {7, 41, 89},
}
# Java's consumer raises IllegalStateException for any other error of a partition (FetchCollector.handleInitializeErrors).
TAKEN_BY_JAVAS_CONSUMER = {0, -1, 1, 2, 3, 6, 9, 29, 56, 74, 75, 78, 100, 103}


def test_every_class_of_the_tree_has_a_row_of_its_own_and_no_row_is_left_over() -> None:
    assert set(WIRE_CODES) == set(EVERY_CLASS)
    assert len(EVERY_CLASS) > 25


@pytest.mark.parametrize("kind", EVERY_CLASS, ids=lambda kind: kind.__name__)
def test_a_kafka_client_retries_exactly_what_is_retryable(kind: type[TidelogError]) -> None:
    for group, retriable in KAFKA_RETRIABLE.items():
        assert (getattr(WIRE_CODES[kind], group) in retriable) == kind.retryable, group


@pytest.mark.parametrize("kind", EVERY_CLASS, ids=lambda kind: kind.__name__)
def test_every_class_has_a_code_in_every_column_and_success_is_none(kind: type[TidelogError]) -> None:
    codes = {group: getattr(WIRE_CODES[kind], group) for group in KAFKA_GROUPS}
    assert all(-1 <= code <= 133 for code in codes.values())
    assert [group for group, code in codes.items() if code == 0] == (["fetch"] if kind is Throttled else [])


@pytest.mark.parametrize("kind", EVERY_CLASS, ids=lambda kind: kind.__name__)
def test_no_fetch_kills_a_java_consumer(kind: type[TidelogError]) -> None:
    assert WIRE_CODES[kind].fetch in TAKEN_BY_JAVAS_CONSUMER


def test_kafka_code_89_of_controller_quotas_is_sent_to_administrators_alone() -> None:
    assert {group for codes in WIRE_CODES.values() for group in KAFKA_GROUPS if getattr(codes, group) == 89} == {"admin"}


def test_a_fenced_producer_may_abort_its_transaction_and_go_on() -> None:
    assert WIRE_CODES[errors.ProducerFenced][2:7:4] == (47, 90), "PRODUCER_FENCED in a Produce answer is fatal to clients"


@pytest.mark.parametrize(
    ("error", "group", "code"),
    [
        (errors.NotAuthorized("x", resource="group"), "group", 30),
        (errors.NotAuthorized("x", resource="topic"), "group", 29),
        (errors.NotAuthorized("x", resource="cluster"), "admin", 31),
        (errors.NotAuthorized("x", resource="topic"), "admin", 29),
        (errors.NotAuthorized("x", resource="topic"), "transaction", 53),
        (errors.InvalidArgument("x", setting="retention.ms"), "admin", 40),
        (errors.InvalidArgument("x", partition_count=0), "admin", 37),
        (errors.InvalidArgument("x", replication_factor=-2), "admin", 38),
        (errors.InvalidArgument("x"), "admin", 42),
        (errors.InvalidName("x"), "admin", 17),
        (errors.InvalidArgument("x", field="session_timeout_ms"), "group", 26),
    ],
)
def test_a_denied_or_wrong_request_has_kafkas_code_for_it(error: TidelogError, group: KafkaApiGroup, code: int) -> None:
    assert kafka_code(error, group) == code


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
    assert [wire_codes(kind("x")).fetch for kind in (FencedLeaderEpoch, UnknownLeaderEpoch)] == [74, 75]


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
def test_errors_of_consumer_groups_have_kafkas_codes(kind: type[TidelogError], kafka: int) -> None:
    assert wire_codes(kind("x")).group == kafka


def test_an_old_generation_is_a_conflict_over_http_and_aborted_over_grpc() -> None:
    for kind in (errors.StaleMember, errors.UnknownMember, errors.StaleGeneration, errors.RebalanceInProgress):
        assert (wire_codes(kind("x")).http, wire_codes(kind("x")).grpc) == (409, StatusCode.ABORTED)
