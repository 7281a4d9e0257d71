"""One connection of a Kafka client: requests in, answers out in the order of the requests.

    bytes ─▶ frame_reader ─▶ begin (requests.py) ─┬▶ Produce: appended at once, in the order of arrival
                                                  ├▶ a heartbeat that waits for nothing: answered at once
                                                  └▶ any other: one after the other, in a task while there are some
    decided ─▶ answers, oldest first ─▶ one write for all decided answers

Kafka's own broker handles one request of a connection at a time. Here a Produce does not wait for the requests before it, since
each commit takes a PUT; and a Fetch that waits for records ends as soon as another request arrives behind it.

A connection is not read while one of these holds:

    ADMISSION    a request waits for memory, or for its check in a thread
    IN_FLIGHT    REQUESTS_MAX requests are not answered yet
    UNSENT       the client does not receive its answers: requests that were received already are not handled either
    THROTTLED    its principal has used up a quota
    AUTHENTICATION   a message of its SASL exchange is handled
    RIGHTS       a Produce waits until the broker has heard of all rights, before a topic is refused
    STOPPING     the broker stops: what was begun is answered, then the connection is closed

Invariants: answers leave in the order of their requests. Bytes that were received while the connection is not read are kept, in
order, and are at most the shared buffer. Memory of an answer is released once the client has received it, or the connection is
lost."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from gateway.access.authorization import Principal
from gateway.access.quotas import Meter
from gateway.kafka.frame_reader import Announced, Frame, FrameReader
from gateway.net.connection_limiter import ConnectionLimiter, ConnectionSlot
from gateway.net.tls.client_subject import ClientSubject, subject_of_der
from gateway.records.refused_batches import RefusedBatches
from metadata.errors import TidelogError, TooLarge
from segments.byte_budget import Admission
from segments.object_store.interface import Buffer

if TYPE_CHECKING:
    from gateway.kafka.listener_config import ListenerConfig

# Requests of one connection that are not answered yet.
REQUESTS_MAX: Final = 64
# Unsent bytes above which a connection is not read. The limit is low, since unsent answers hold memory of the response budget.
UNSENT_BYTES_MAX: Final = 64 << 10
# A client that receives less than this in WRITE_STALL_S is disconnected, as over HTTP.
WRITE_STALL_S: Final = 30.0
WRITE_BYTES_PER_SECOND_MIN: Final = 64 << 10
# A request that takes longer than this, and what its bytes take at that rate, ends its connection: it holds memory that others
# wait for.
RECEIVE_STALL_S: Final = 30.0
RECEIVE_BYTES_PER_SECOND_MIN: Final = 64 << 10

log = logging.getLogger(__name__)


class Hold:
    """The reasons why a connection is not read, one bit each. They are plain numbers: an enum's `&` takes a microsecond."""

    ADMISSION: Final = 1
    IN_FLIGHT: Final = 2
    UNSENT: Final = 4
    THROTTLED: Final = 8
    AUTHENTICATION: Final = 16
    STOPPING: Final = 32
    RIGHTS: Final = 64


class Answer:
    """One answer in the order of its connection, open until `decide`."""

    __slots__ = ("buffers", "is_decided", "is_last", "release", "size_bytes")

    def __init__(self) -> None:
        self.is_decided = False
        # Whether the connection is closed once this answer is sent.
        self.is_last = False
        # Empty for a request without an answer: Produce with acks=0.
        self.buffers: Sequence[Buffer] = ()
        self.size_bytes = 0
        # Releases the memory of the answer.
        self.release: Callable[[], None] | None = None


class HeldFrame(NamedTuple):
    """A frame that was received while its connection is not read."""

    frame: Frame
    admission: Admission | None


class Requests(Protocol):
    """Admits and handles the requests of all connections of a broker; requests.py implements it."""

    @property
    def shared_buffer(self) -> memoryview: ...
    @property
    def connections(self) -> ConnectionLimiter: ...
    def frame_bytes_max(self, connection: KafkaConnection) -> int: ...

    def shortens(self, connection: KafkaConnection) -> bool:
        """Returns whether longer Produce requests are received without their records, to be refused."""
        ...

    def opened(self, connection: KafkaConnection) -> None: ...
    def closed(self, connection: KafkaConnection) -> None: ...

    def admit_now(self, announced: Announced) -> Admission | None:
        """Reserves memory for a long frame; returns None if none is free now."""
        ...

    async def admit(self, announced: Announced) -> Admission:
        """Waits for memory for a long frame."""
        ...

    def begin(self, connection: KafkaConnection, frame: Frame, admission: Admission | None) -> None:
        """Begins a request. Raises TidelogError if the connection must be closed."""
        ...


class KafkaConnection(asyncio.BufferedProtocol):
    """Receives the requests of one client, and sends their answers in order."""

    __slots__ = (
        "_admission",
        "_answers",
        "_decided_bytes",
        "_handled",
        "_held",
        "_holds",
        "_is_flushing",
        "_loop",
        "_poll",
        "_reader",
        "_receive_ends_s",
        "_requests",
        "_room",
        "_slot",
        "_stall_timer",
        "_tasks",
        "_throttle",
        "_unreceived",
        "_waiting_work",
        "_worker",
        "authenticated",
        "client_host",
        "is_closed",
        "last_used_s",
        "listener",
        "refused_batches",
        "sasl",
        "subject",
        "throttled_by",
        "transport",
    )

    def __init__(self, requests: Requests, listener: ListenerConfig, slot: ConnectionSlot | None = None) -> None:
        """`slot` is that of a connection whose TLS handshake was counted already."""
        self._requests = requests
        self._loop = asyncio.get_running_loop()
        self._slot = slot
        self._holds = 0
        # An empty deque takes 760 bytes: idle connections have none. The lists below are short: at most REQUESTS_MAX are in flight.
        self._held: deque[HeldFrame] | None = None
        self._admission: Admission | None = None
        self._answers: list[Answer] = []
        self._waiting_work: list[tuple[Answer, Callable[[], Awaitable[None]]]] = []
        # The place of the request that the worker handles now.
        self._handled: Answer | None = None
        self._worker: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._poll: asyncio.Timeout | None = None
        self._is_flushing = False
        # Bytes of answers that are decided, and wait for those before them.
        self._decided_bytes = 0
        # What the worker waits for while too many answers are not sent.
        self._room: asyncio.Future[None] | None = None
        self._unreceived: list[Callable[[], None]] = []
        self._stall_timer: asyncio.TimerHandle | None = None
        self._throttle: asyncio.TimerHandle | None = None
        # The meter of the quota for which this connection waits; None while it waits for none.
        self.throttled_by: Meter | None = None
        self.listener = listener
        self.is_closed = False
        self.client_host = ""
        # The authenticated client; None before it authenticates, or if authentication is off.
        self.authenticated: Principal | None = None
        # The state of a SASL exchange (authentication.py).
        self.sasl: Any = None
        self.subject: ClientSubject | None = None
        # Of idempotent producers; None until one was refused.
        self.refused_batches: RefusedBatches | None = None
        self.last_used_s = self._loop.time()
        # When the request that is being received must be whole.
        self._receive_ends_s = float("inf")
        self._reader = FrameReader(requests.shared_buffer, bytes_max=0)

    # ── the transport ───────────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX, low=0)
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if peer else ""
        if self._slot is None:
            self._slot = self._requests.connections.take(self.client_host)
        if self._slot is None or self._slot.refusal is not None:
            self._abort()
            return
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and (der := tls.getpeercert(binary_form=True)):
            self.subject = subject_of_der(der)
        self._requests.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        if self._slot is not None:
            self._slot.give_back()
        for timer in (self._stall_timer, self._throttle):
            if timer is not None:
                timer.cancel()
        for task in (*self._tasks, *((self._worker,) if self._worker is not None else ())):
            task.cancel()
        self._waiting_work.clear()
        for held in self._held or ():
            if held.admission is not None:
                held.admission.release()
        self._held = None
        if self._admission is not None:
            self._admission.release()
            self._admission = None
        for answer in self._answers:
            if answer.release is not None:
                answer.release()
        self._answers.clear()
        self._release_received()
        self._requests.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.last_used_s = self._loop.time()
        self._reader.bytes_max = self._requests.frame_bytes_max(self)
        self._reader.shortens = self._requests.shortens(self)
        frames_begun = self._reader.frames_begun
        try:
            self._take(self._reader.received(nbytes))
            self._accept_announced()
        except TidelogError as error:
            self.refuse(error)
        except Exception as error:  # noqa: BLE001  # the event loop would close the connection without a reason in the log
            self._fail(error)
        if self._reader.frames_begun != frames_begun:
            self._bound_receipt()

    def pause_writing(self) -> None:
        self.hold(Hold.UNSENT)
        self._watch_writing(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        self._release_received()
        self.go_on(Hold.UNSENT)
        self._wake_worker()

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_idle(self) -> bool:
        """Returns True if no request is in progress."""
        return not self._answers and not self._waiting_work and not self._held

    @property
    def awaits_bytes(self) -> bool:
        """Returns True if only a part of a request was received."""
        return self._reader.is_torn and not self._holds

    def is_too_slow(self, now_s: float) -> bool:
        """Returns whether a request has been arriving for longer than it may."""
        return self._reader.bytes_missing > 0 and not self._holds and now_s > self._receive_ends_s

    def hold(self, why: int) -> None:
        """Stops reading for a reason of `Hold`, until `go_on` has removed all reasons."""
        if not self._holds and not self._is_ending:
            self.transport.pause_reading()
        self._holds |= why

    def go_on(self, why: int) -> None:
        """Removes one reason. Without any left, handles the frames received meanwhile, and reads again."""
        if not self._holds & why:
            return
        self._holds &= ~why
        if self._holds or self._is_ending:
            return
        try:
            while self._held and not self._holds and not self._is_ending:
                held = self._held.popleft()
                self._requests.begin(self, held.frame, held.admission)
            if not self._held:
                self._held = None
            if not self._holds:
                self._accept_announced()
        except TidelogError as error:
            self.refuse(error)
            return
        except Exception as error:  # noqa: BLE001  # a timer calls this: the connection would stay unread
            self._fail(error)
            return
        if not self._holds and not self._is_ending:
            self._bound_receipt()  # the client could send nothing meanwhile
            self.transport.resume_reading()

    def answer(self) -> Answer:
        """Returns the place of the answer to the request that is begun now."""
        answer = Answer()
        self._answers.append(answer)
        self._end_poll()
        if len(self._answers) >= REQUESTS_MAX:
            self.hold(Hold.IN_FLIGHT)
        return answer

    def decide(self, answer: Answer, buffers: Sequence[Buffer], release: Callable[[], None] | None = None) -> None:
        """Sends the answer as soon as those before it are sent. `release` is called once the client has received it."""
        answer.is_decided = True
        if self.is_closed:
            if release is not None:
                release()
            return
        answer.buffers, answer.release = buffers, release
        answer.size_bytes = sum(map(len, buffers))
        self._decided_bytes += answer.size_bytes
        if self._answers[0] is answer and not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)  # a commit decides many: one write for all of them

    @property
    def is_free(self) -> bool:
        """Returns True if a request that arrives now may be handled at once: none before it waits, and the client receives its
        answers."""
        return self._worker is None and not self._is_behind

    def enqueue(self, answer: Answer, work: Callable[[], Awaitable[None]]) -> None:
        """Runs the work, which decides the answer, after that of the requests before it."""
        self._waiting_work.append((answer, work))
        if self._worker is None:
            self._worker = self._loop.create_task(self._work())

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs the work beside that of other requests, and cancels it if the connection is lost."""
        task = self._loop.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def others_wait(self) -> bool:
        """Returns True if another request arrived behind the one that is handled now."""
        return bool(self._answers) and self._answers[-1] is not self._handled

    @contextmanager
    def polling(self, poll: asyncio.Timeout) -> Iterator[None]:
        """Lets the next request end this wait, or one that has arrived already."""
        self._poll = poll
        if self.others_wait:
            self._end_poll()
        try:
            yield
        finally:
            self._poll = None

    def throttle(self, wait_s: float, meter: Meter) -> None:
        """Does not read the connection for this time, or until an earlier wait for the same meter ends if that is later."""
        ends_s = self._loop.time() + wait_s
        if self._throttle is not None:
            if self.throttled_by is meter and self._throttle.when() >= ends_s:
                return
            self._throttle.cancel()
        self.hold(Hold.THROTTLED)
        self.throttled_by = meter
        self._throttle = self._loop.call_at(ends_s, self._end_throttle)

    def end_throttle(self, *, unless: Meter | None) -> None:
        """Ends the wait for a quota soon, unless it is a wait for this meter."""
        if self._throttle is not None and self.throttled_by is not unless:
            self._throttle.cancel()
            self._throttle = self._loop.call_at(self._loop.time(), self._end_throttle)

    def drain(self) -> None:
        """Begins no further request, and closes the connection once those before are answered."""
        self.hold(Hold.STOPPING)
        if not self._answers:
            self.close()

    def refuse(self, error: TidelogError) -> None:
        """Closes the connection, because Kafka's protocol has no answer for this error; the log has the reason."""
        # The client of a too large request only sees the connection close, and sends the request again.
        level = logging.WARNING if isinstance(error, TooLarge) else logging.INFO
        said = f"{error.message}. {error.hint}".rstrip()
        log.log(level, "connection closed client=%s listener=%s: %s", self.client_host, self.listener.name, said)
        self._abort()

    def close(self) -> None:
        """Closes the connection once all written bytes are sent, or its client has stopped receiving."""
        self.is_closed = True
        self.transport.close()
        if self._stall_timer is None and (bytes_left := self.transport.get_write_buffer_size()):
            self._watch_writing(bytes_left)

    @property
    def _is_ending(self) -> bool:
        return self.is_closed or self.transport.is_closing()

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            if self._is_ending:  # a request before it was refused
                return
            admission, self._admission = self._admission, None  # of the first: it was announced, and nothing came before it
            if self._holds:
                kept = frame if frame.is_owned else Frame(memoryview(bytes(frame.data)), is_owned=True)
                if self._held is None:
                    self._held = deque()
                self._held.append(HeldFrame(kept, admission))
            else:
                self._requests.begin(self, frame, admission)

    def _bound_receipt(self) -> None:
        wait_s = RECEIVE_STALL_S + self._reader.bytes_missing / RECEIVE_BYTES_PER_SECOND_MIN
        self._receive_ends_s = self._loop.time() + wait_s

    def _accept_announced(self) -> None:
        """Receives the announced frame if memory is free for it; else stops reading until it is."""
        while (announced := self._reader.announced) is not None and not self._holds:
            self._admission = self._requests.admit_now(announced)
            if self._admission is None:
                self.hold(Hold.ADMISSION)
                self.run(lambda: self._await_admission(announced))
                return
            self._take(self._reader.accept())

    async def _await_admission(self, announced: Announced) -> None:
        self._admission = await self._requests.admit(announced)
        self._take(self._reader.accept())
        self.go_on(Hold.ADMISSION)

    def _end_poll(self) -> None:
        """Ends the wait of a Fetch. A timeout that has expired can't be moved, also while its task has not seen it yet."""
        poll, self._poll = self._poll, None
        if poll is not None and not poll.expired():
            poll.reschedule(self._loop.time())

    async def _work(self) -> None:
        try:
            while self._waiting_work:
                while self._is_behind:
                    self._room = self._loop.create_future()
                    await self._room
                self._handled, work = self._waiting_work.pop(0)
                await self._guarded(work)
        finally:
            self._handled = self._worker = self._room = None

    @property
    def _is_behind(self) -> bool:
        """Returns whether waiting answers take so much memory that no further one is made until the client has received some."""
        return self._holds & Hold.UNSENT != 0 or self._decided_bytes > UNSENT_BYTES_MAX

    def _wake_worker(self) -> None:
        if self._room is not None and not self._room.done() and not self._is_behind:
            self._room.set_result(None)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except TidelogError as error:
            self.refuse(error)
        except Exception as error:  # noqa: BLE001  # it is logged
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Closes the connection after an error of the broker itself."""
        log.error(
            "request failed client=%s listener=%s; the connection is closed", self.client_host, self.listener.name, exc_info=error
        )
        self._abort()

    def _end_throttle(self) -> None:
        self._throttle = self.throttled_by = None
        self.go_on(Hold.THROTTLED)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._is_ending:
            return
        buffers: list[Buffer] = []
        is_last = False
        answers = self._answers
        while answers and answers[0].is_decided:
            answer = answers.pop(0)
            buffers += answer.buffers
            self._decided_bytes -= answer.size_bytes
            is_last |= answer.is_last
            if answer.release is not None:
                self._unreceived.append(answer.release)
        if len(buffers) == 1:
            self.transport.write(buffers[0])
        elif buffers:
            self.transport.writelines(buffers)
        self.last_used_s = self._loop.time()  # the client has had no reason to send anything while it waited
        if is_last or (self._holds & Hold.STOPPING and not answers):
            self.close()
            return
        if not self._holds & Hold.UNSENT:
            self._release_received()
        if len(answers) <= REQUESTS_MAX // 2:
            self.go_on(Hold.IN_FLIGHT)
        self._wake_worker()

    def _release_received(self) -> None:
        released, self._unreceived = self._unreceived, []
        for release in released:
            release()

    def _watch_writing(self, bytes_left: int) -> None:
        self._stall_timer = self._loop.call_later(WRITE_STALL_S, self._check_writing, bytes_left)

    def _check_writing(self, bytes_before: int) -> None:
        bytes_left = self.transport.get_write_buffer_size()
        if bytes_before - bytes_left >= WRITE_STALL_S * WRITE_BYTES_PER_SECOND_MIN:
            self._watch_writing(bytes_left)
        else:
            log.info("connection closed client=%s: it does not receive its answers", self.client_host)
            self._abort()

    def _abort(self) -> None:
        self.is_closed = True
        self.transport.abort()
