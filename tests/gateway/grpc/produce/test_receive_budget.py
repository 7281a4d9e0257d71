"""Turns to read: the bound holds, idle streams delay no others, and nothing leaks when readers give up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import grpc.aio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.grpc.produce import receive_budget
from gateway.grpc.produce.receive_budget import FIRST_TURN_S, TURN_LONGEST_S, TURN_S, ReceiveBudget
from metadata.errors import Throttled, TooLarge
from segments.byte_budget import ByteBudget
from tests.simulation.virtual_loop import run

Value = TypeVar("Value")


@pytest.fixture(autouse=True)
def short_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_budget, "BYTES_EXPECTED_MIN", 1)


Receive = Callable[[], Awaitable[object]]


def arriving(length: int, *, in_s: float = 0.0) -> Receive:
    """A stream on which a message of this length is there so many seconds after it was asked for."""

    async def receive() -> object:
        await asyncio.sleep(in_s)
        return b"x" * length

    return receive


async def now_s() -> float:
    return asyncio.get_running_loop().time()


async def read(
    messages: ReceiveBudget, receive: Receive, *, expected: int | None, waits_s: float = 0.0, turn_s: float = TURN_S
) -> float:
    """Reads a message, which then waits `waits_s` for room in the buffer. Returns when it was read."""
    message = await messages.next(receive, bytes_expected=expected, turn_s=turn_s)
    assert message is not None
    with message:
        message.hold(len(message.body))
        read_at_s = await now_s()
        await asyncio.sleep(waits_s)
    return read_at_s


def gather_all(messages: ReceiveBudget, *reads: Coroutine[Any, Any, Value]) -> list[Value | BaseException]:
    """What each gives, or raises. Nothing may be held at the end."""

    async def main() -> list[Value | BaseException]:
        return await asyncio.gather(*reads, return_exceptions=True)

    results = run(main())
    assert (messages.bytes_held, messages.waiting) == (0, 0)
    assert messages._room.bytes_used_peak <= messages.bytes_max
    return results


# ── turns ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_messages_are_read_in_turn_while_there_is_room_for_what_is_expected() -> None:
    messages = ReceiveBudget(20, bytes_usual=1)
    results = gather_all(messages, *(read(messages, arriving(4), expected=4, waits_s=5) for _ in range(5)))
    assert results == [0, 0, 5, 5, 10]
    assert messages._room.bytes_used_peak == 8


def test_a_turn_for_a_message_that_is_expected_to_be_longer_than_any_turn_is_for_what_there_is() -> None:
    messages = ReceiveBudget(20, bytes_usual=1)
    assert gather_all(messages, read(messages, arriving(15), expected=15)) == [0]


def test_the_first_message_of_a_stream_is_expected_to_be_as_long_as_others_lately() -> None:
    messages = ReceiveBudget(2000, bytes_usual=100)

    async def first(length: int) -> int:
        turn = 0

        async def receive() -> object:
            nonlocal turn
            turn = messages.bytes_held
            return b"x" * length

        await read(messages, receive, expected=None)
        return turn

    async def main() -> list[int]:
        return [await first(length) for length in (10, 800, 10, 10)] + [await first(10) for _ in range(20)][-1:]

    assert run(main()) == [100, 100, 800, 700, 100]


def test_idle_streams_give_up_their_turns_to_active_ones() -> None:
    messages = ReceiveBudget(20, bytes_usual=1)
    idle = [read(messages, arriving(5, in_s=3600), expected=5) for _ in range(20)]
    *_, active = gather_all(messages, *idle, read(messages, arriving(5), expected=5))
    assert active == pytest.approx(10 * TURN_S)


def test_a_client_that_sends_slowly_holds_its_turn_no_longer_than_an_idle_one() -> None:
    messages = ReceiveBudget(20, bytes_usual=1)
    slow, active = gather_all(
        messages, read(messages, arriving(10, in_s=60), expected=10), read(messages, arriving(10), expected=10)
    )
    assert (slow, active) == (60, TURN_S)


def held_by_idle(messages: ReceiveBudget, *, waits_s: float) -> float:
    """Seconds that an idle stream holds its turn while a message waits for the buffer and no stream waits for a turn."""

    async def main() -> float:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read(messages, arriving(5), expected=5, waits_s=waits_s))
            tasks.create_task(read(messages, arriving(15, in_s=3600), expected=15))
            await asyncio.sleep(0.01)
            while messages.bytes_held >= 15:  # noqa: ASYNC110  # the clock is virtual
                await asyncio.sleep(0.01)
            return await now_s()

    return run(main())


def test_turns_are_longer_while_messages_wait_for_the_buffer_and_no_stream_for_a_turn() -> None:
    assert held_by_idle(ReceiveBudget(40, bytes_usual=1), waits_s=60) == pytest.approx(TURN_LONGEST_S, abs=0.02)


def test_turns_are_short_again_when_nothing_waits_any_more() -> None:
    assert held_by_idle(ReceiveBudget(40, bytes_usual=1), waits_s=0.25) == pytest.approx(0.3, abs=0.02)


def test_an_idle_turn_is_taken_back_when_others_wait_for_one() -> None:
    messages = ReceiveBudget(40, bytes_usual=1)
    waiting = read(messages, arriving(5), expected=5, waits_s=60)
    idle = [read(messages, arriving(15, in_s=3600), expected=15) for _ in range(2)]

    async def later() -> float:
        await asyncio.sleep(0.45)  # the first has given its turn to the second, which holds it since no stream waited
        return await read(messages, arriving(15), expected=15)

    assert gather_all(messages, waiting, *idle, later())[3] == pytest.approx(0.5)


def test_a_stream_that_never_sent_holds_a_turn_for_a_short_time_only() -> None:
    messages = ReceiveBudget(64, bytes_usual=1)
    waiting = read(messages, arriving(8), expected=8, waits_s=60)
    idle = [read(messages, arriving(1, in_s=3600), expected=None, turn_s=FIRST_TURN_S) for _ in range(240)]
    first = read(messages, arriving(1), expected=None, turn_s=FIRST_TURN_S)
    *_, active = gather_all(messages, waiting, *idle, first)
    assert active == pytest.approx(240 / 24 * FIRST_TURN_S)


def test_a_message_that_only_opens_its_stream_says_little_of_the_next_but_not_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_budget, "BYTES_EXPECTED_MIN", 2)
    messages = ReceiveBudget(64, bytes_usual=16)
    idle = [read(messages, arriving(16, in_s=3600 * number), expected=0) for number in range(1, 9)]
    *_, active = gather_all(messages, *idle, read(messages, arriving(16), expected=None))
    assert active == 0


# ── what comes unasked ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_on_an_idle_stream_finds_the_room_that_turns_leave() -> None:
    messages = ReceiveBudget(20, bytes_usual=1)
    idle = read(messages, arriving(12, in_s=10), expected=1)
    in_turn = [read(messages, arriving(4), expected=4, waits_s=60) for _ in range(2)]
    assert gather_all(messages, idle, *in_turn) == [10, 0, 0]
    assert messages._room.bytes_used_peak == 20


def test_a_message_that_comes_unasked_and_finds_no_room_is_throttled_and_counts_nothing() -> None:
    messages = ReceiveBudget(20, bytes_usual=1)
    idle = [read(messages, arriving(7, in_s=in_s), expected=1, waits_s=5) for in_s in (10, 11)]
    in_turn = [read(messages, arriving(4), expected=4, waits_s=60) for _ in range(2)]
    taken, dropped, *_ = gather_all(messages, *idle, *in_turn)
    assert taken == 10
    assert isinstance(dropped, Throttled)
    assert str(dropped).startswith("gRPC messages that wait for room in the buffer take 15 of 20 bytes; there is none for 7")
    assert (dropped.retryable, dropped.nothing_was_written) == (True, True)


def test_a_message_that_is_longer_than_its_turn_counts_whole_or_is_dropped_whole() -> None:
    messages = ReceiveBudget(20, bytes_usual=1)
    longer = [read(messages, arriving(8), expected=2, waits_s=5) for _ in range(3)]
    *taken, dropped = gather_all(messages, *longer)
    assert taken == [0, 0]
    assert isinstance(dropped, Throttled)


def test_a_message_that_could_never_find_room_is_refused_for_good() -> None:
    messages = ReceiveBudget(20, bytes_usual=1)
    (refused,) = gather_all(messages, read(messages, arriving(21), expected=1))
    assert isinstance(refused, TooLarge)


# ── who gives up ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_that_was_released_early_makes_room_at_once() -> None:
    async def main() -> None:
        messages = ReceiveBudget(20, bytes_usual=1)
        message = await messages.next(arriving(10), bytes_expected=10)
        assert message is not None
        with message:
            message.hold(12)
            assert (messages.bytes_held, messages.waiting) == (12, 1)
            message.release()
            assert (messages.bytes_held, messages.waiting) == (0, 0)
            await read(messages, arriving(10), expected=10)
        assert (messages.bytes_held, messages.waiting) == (0, 0)

    run(main())


def test_the_end_of_a_stream_gives_its_turn_back() -> None:
    async def end() -> object:
        return grpc.aio.EOF

    messages = ReceiveBudget(20, bytes_usual=1)
    assert gather_all(messages, messages.next(end, bytes_expected=10)) == [None]


@pytest.mark.parametrize("in_s", [0, 5])
def test_a_client_that_vanishes_gives_its_turn_back(in_s: float) -> None:
    async def vanish() -> object:
        await asyncio.sleep(in_s)
        raise grpc.aio.UsageError("the call is done")

    messages = ReceiveBudget(20, bytes_usual=1)
    (error,) = gather_all(messages, messages.next(vanish, bytes_expected=10))
    assert isinstance(error, grpc.aio.UsageError)


def test_a_stream_that_is_cancelled_gives_its_turn_back_and_reads_no_more() -> None:
    cancelled: list[float] = []

    async def receive() -> object:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(await now_s())
            raise
        return b""

    cancelled_at: list[float] = []

    async def main() -> None:
        messages = ReceiveBudget(20, bytes_usual=1)
        for after_s in (TURN_S / 2, 5.0):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(after_s):
                    await messages.next(receive, bytes_expected=10)
            assert (messages.bytes_held, len(cancelled)) == (0, len(cancelled_at) + 1), "it ended before its stream did"
            cancelled_at.append(await now_s())
        holder = await messages.next(arriving(10), bytes_expected=10)
        assert holder is not None
        with holder, pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await messages.next(receive, bytes_expected=10)
        assert messages.bytes_held == 0

        assert cancelled == cancelled_at, "the third was never begun"

    run(main())


# ── together with the buffer ────────────────────────────────────────────────────────────────────────────────────────────

# For each: (length, seconds until it comes) of its messages; when it vanishes.
producers = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(1, 16), st.sampled_from([0.0, 0.01, 0.3, 5.0])), min_size=1, max_size=5),
        st.none() | st.sampled_from([0.05, 1.0, 7.0]),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(producers, st.integers(16, 40), st.integers(32, 60), st.integers(0, 2**32))
def test_both_bounds_hold_and_every_stream_ends_for_any_order_of_arrivals(
    producers: list[tuple[list[tuple[int, float]], float | None]], buffer_bytes: int, waiting_bytes: int, seed: int
) -> None:
    messages, buffer = ReceiveBudget(waiting_bytes, bytes_usual=4), ByteBudget(buffer_bytes)

    async def produce(sent: list[tuple[int, float]], committing: asyncio.TaskGroup) -> None:
        expected = None
        for length, in_s in sent:
            message = await messages.next(arriving(length, in_s=in_s), bytes_expected=expected)
            assert message is not None
            expected = length
            with message:
                try:
                    message.hold(length)
                except Throttled:
                    continue
                await buffer.acquire(length, timeout_s=1000)
                committing.create_task(commit(length))

    async def commit(length: int) -> None:
        await asyncio.sleep(1)
        buffer.release(length)

    async def one(sent: list[tuple[int, float]], vanishes_s: float | None, committing: asyncio.TaskGroup) -> None:
        try:
            async with asyncio.timeout(vanishes_s):
                await produce(sent, committing)
        except TimeoutError:
            pass

    async def main() -> None:
        async with asyncio.TaskGroup() as committing, asyncio.TaskGroup() as clients:
            for sent, vanishes_s in producers:
                clients.create_task(one(sent, vanishes_s, committing))

    run(main(), seed=seed, shuffled=True)
    assert messages._room.bytes_used_peak <= messages.bytes_max
    assert (messages.bytes_held, messages.waiting, buffer.bytes_used) == (0, 0, 0)
