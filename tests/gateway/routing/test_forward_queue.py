"""One queue: which appends leave it in which order, and how their outcomes are settled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from gateway.routing.forward_queue import ForwardedAppend, ForwardQueue, MessageRoom, Outcome
from metadata.errors import (
    ConditionFailed,
    DuplicateSequence,
    InvalidTimestamp,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    OutOfOrderSequence,
    TidelogError,
    Unauthenticated,
    Unavailable,
)
from metadata.model import LeaderEpoch, Offset, SessionId
from segments.log.session_log import Acks
from segments.partition.partition_log import AS_PRODUCED, Appended
from tests.kit.segments.batches import ORDERS, batch_of, header_of, sequenced_batch

NOW_S, LATER_S = 100.0, 200.0
LEADER = SessionId(3)
APPENDED = Appended(Offset(7), Offset(7), LeaderEpoch(1))


class World:
    """A queue, and the outcomes that it settled."""

    def __init__(self) -> None:
        self.queue = ForwardQueue(ORDERS, self.settle)
        self.settled: dict[str, Outcome] = {}
        self._names: dict[ForwardedAppend, str] = {}

    def settle(self, append: ForwardedAppend, outcome: Outcome) -> None:
        assert self._names[append] not in self.settled, "settled twice"
        append.outcome.set_result(outcome)
        self.settled[self._names[append]] = outcome

    def add(
        self, name: str, *, of: object = None, idempotent: bool = False, acks: Acks = Acks.ALL, deadline_s: float = LATER_S
    ) -> ForwardedAppend:
        batch = sequenced_batch(5, len(self._names)) if idempotent else batch_of(name.encode())
        append = ForwardedAppend(
            ORDERS,
            batch,
            header_of(batch),
            acks=acks,
            deadline_s=deadline_s,
            expected_offset=None,
            dates=AS_PRODUCED,
            bytes_charged=0,
            charged_to="",
        )
        self._names[append] = name
        self.queue.add(append, of or append)
        return append

    def take(self, *, now_s: float = NOW_S, appends: int = 100, bytes_max: int = 1 << 20) -> list[str]:
        return [self._names[append] for append in self.queue.take(now_s, MessageRoom(bytes_max, appends), LEADER)]

    def answered(self, *outcomes: Appended | TidelogError) -> TidelogError | None:
        return self.queue.answered(outcomes)

    def reported(self, *names: str) -> Sequence[type[Outcome]]:
        return [type(self.settled[name]) for name in names]


def in_loop(scenario: Callable[[World], None]) -> None:
    async def main() -> None:
        scenario(World())

    asyncio.run(main())


def test_batches_leave_in_the_order_of_their_coming_as_many_as_fit() -> None:
    def scenario(world: World) -> None:
        for name in "abcde":
            world.add(name)
        assert world.take(appends=2) == ["a", "b"]
        assert world.answered(APPENDED, APPENDED) is None
        assert world.take(bytes_max=1) == ["c"], "one always fits"
        world.answered(APPENDED)
        assert world.take() == ["d", "e"]

    in_loop(scenario)


def test_appends_that_wait_for_their_commit_and_appends_that_do_not_go_in_different_messages() -> None:
    def scenario(world: World) -> None:
        world.add("all")
        world.add("leader", acks=Acks.LEADER)
        world.add("none", acks=Acks.NONE)
        assert world.take() == ["all"]
        world.answered(APPENDED)
        assert world.take() == ["leader", "none"]

    in_loop(scenario)


def test_appends_that_a_former_leader_refused_go_before_those_that_came_meanwhile() -> None:
    def scenario(world: World) -> None:
        world.add("a")
        world.add("b")
        world.take()
        world.add("c")
        assert isinstance(world.answered(NotLeader("no more"), NoLeader("no more")), NoLeader)
        assert world.take() == ["a", "b", "c"]
        assert world.settled == {}

    in_loop(scenario)


def test_a_refused_batch_takes_along_those_behind_it_of_its_message_wherever_they_are() -> None:
    def scenario(world: World) -> None:
        message = object()
        for name, of in (("a", message), ("b", message), ("x", None)):
            world.add(name, of=of)
        assert world.take() == ["a", "b", "x"]
        world.add("c", of=message)
        world.add("y")
        unseen = Unavailable("not looked at")
        assert world.answered(ConditionFailed("another end"), unseen, unseen) is None
        assert world.reported("a", "b", "c") == [ConditionFailed] * 3
        assert world.take() == ["x", "y"]

    in_loop(scenario)


def test_a_producer_with_a_wrong_clock_and_the_gap_behind_it_does_not_hold_up_the_others() -> None:
    def scenario(world: World) -> None:
        for name in ("x", "a", "y", "b"):
            world.add(name, idempotent=True)
        world.take()
        misdated, gap = InvalidTimestamp("dated too far ahead"), OutOfOrderSequence("a gap")
        assert world.answered(APPENDED, misdated, APPENDED, gap) is None
        assert world.reported("x", "a", "y", "b") == [Appended, InvalidTimestamp, Appended, OutOfOrderSequence]
        assert world.take() == []

    in_loop(scenario)


def test_a_repeat_that_is_in_the_log_already_takes_none_of_its_message_along() -> None:
    def scenario(world: World) -> None:
        message = object()
        for name in "ab":
            world.add(name, of=message, idempotent=True)
        assert world.take(appends=1) == ["a"]
        assert world.answered(DuplicateSequence("written long ago")) is None
        assert world.reported("a") == [DuplicateSequence]
        assert world.take() == ["b"], "its client must not take it for written"

    in_loop(scenario)


def test_a_batch_whose_key_was_revoked_holds_up_no_other() -> None:
    def scenario(world: World) -> None:
        for name in ("a", "b", "c"):
            world.add(name)
        world.take()
        assert world.answered(APPENDED, Unauthenticated("the API key was revoked"), APPENDED) is None
        assert world.reported("a", "b", "c") == [Appended, Unauthenticated, Appended]

    in_loop(scenario)


def test_a_refused_api_key_is_reported_even_behind_a_refused_batch() -> None:
    def scenario(world: World) -> None:
        for name in ("a", "b", "c"):
            world.add(name)
        world.take()
        world.answered(ConditionFailed("the end is elsewhere"), Unauthenticated("the API key was revoked"), Unavailable("behind a"))
        assert world.reported("a", "b") == [ConditionFailed, Unauthenticated]
        assert world.take() == ["c"]

    in_loop(scenario)


def test_several_batches_of_one_message_may_be_refused_by_one_answer() -> None:
    def scenario(world: World) -> None:
        message = object()
        for name in ("a", "b"):
            world.add(name, of=message, idempotent=True)
        world.take()
        world.add("c", of=message, idempotent=True)
        misdated, gap = InvalidTimestamp("dated too far ahead"), OutOfOrderSequence("a gap")
        assert world.answered(misdated, gap) is None
        assert world.reported("a", "b", "c") == [InvalidTimestamp, OutOfOrderSequence, InvalidTimestamp]
        assert world.take() == []

    in_loop(scenario)


def test_where_an_answer_is_lost_only_what_a_leader_recognises_is_sent_again() -> None:
    def scenario(world: World) -> None:
        world.add("a", idempotent=True)
        world.add("plain")
        world.add("b", idempotent=True)
        world.take()
        world.add("c")
        world.queue.lost(OutcomeUnknown("no answer"))
        assert world.reported("plain") == [OutcomeUnknown]
        assert world.take() == ["a", "b", "c"]
        world.answered(APPENDED, APPENDED._replace(duplicate=True), APPENDED)
        assert world.reported("a", "b", "c") == [Appended] * 3

    in_loop(scenario)


@pytest.mark.parametrize("error", [ConditionFailed("another end"), OutcomeUnknown("late")])
def test_an_append_that_may_have_been_written_is_never_reported_as_refused(error: TidelogError) -> None:
    def scenario(world: World) -> None:
        world.add("a", idempotent=True)
        world.take()
        world.queue.lost(OutcomeUnknown("no answer"))
        world.take()
        world.answered(error)
        assert world.reported("a") == [OutcomeUnknown]

    in_loop(scenario)


def test_a_request_whose_first_message_is_lost_is_not_written_from_its_middle_on() -> None:
    def scenario(world: World) -> None:
        request = object()
        for name in ("first", "second", "third"):
            world.add(name, of=request)
        world.add("another")
        assert world.take(appends=2) == ["first", "second"]
        lost = OutcomeUnknown("no answer came")
        assert world.queue.lost(lost) is None
        assert world.settled == dict.fromkeys(("first", "second", "third"), lost)
        assert world.take() == ["another"]

    in_loop(scenario)


def test_an_overdue_append_gets_the_last_refusal_and_a_doubtful_one_outcome_unknown() -> None:
    def scenario(world: World) -> None:
        world.add("doubtful", idempotent=True, deadline_s=NOW_S + 1)
        world.take()
        world.queue.lost(OutcomeUnknown("no answer"))
        world.add("waits", deadline_s=NOW_S + 1)
        world.queue.refusal = NoLeader("no leader")
        world.add("later")
        assert world.take(now_s=NOW_S + 2) == ["later"]
        assert world.reported("doubtful", "waits") == [OutcomeUnknown, NoLeader]
        assert str(world.settled["waits"]) == "no leader"

    in_loop(scenario)


def test_a_batch_that_its_sender_took_back_is_passed_over() -> None:
    def scenario(world: World) -> None:
        message = object()
        taken_back = world.add("a", of=message)
        world.add("b", of=message)
        world.add("c")
        world.queue.refuse(taken_back, taken_back.overdue())
        assert world.reported("a", "b") == [NoLeader, NoLeader]
        assert world.take() == ["c"]
        world.answered(APPENDED)
        assert world.take() == []
        assert world.queue.is_empty

    in_loop(scenario)


def test_ten_thousand_that_are_taken_back_one_by_one_cost_one_look_at_each() -> None:
    def scenario(world: World) -> None:
        message = object()
        appends = [world.add(str(at), of=message if at % 2 else None) for at in range(10_000)]
        for append in appends:
            if not append.outcome.done():
                world.queue.refuse(append, append.overdue())
        assert world.take() == []
        assert len(world.settled) == 10_000

    in_loop(scenario)


def test_an_overdue_append_that_was_never_sent_is_refused_and_not_outcome_unknown() -> None:
    async def main() -> None:
        world = World()
        world.queue.refusal = OutcomeUnknown("no answer to the message before")
        world.add("late", deadline_s=NOW_S - 1)
        assert world.take() == []
        assert isinstance(world.settled["late"], NoLeader)

    asyncio.run(main())
