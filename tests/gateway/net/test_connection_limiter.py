"""How many connections a listener takes."""

from __future__ import annotations

from gateway.net.connection_limiter import REFUSALS_OPEN_MAX, ConnectionLimiter, ConnectionSlot


def taken(slot: ConnectionSlot | None) -> ConnectionSlot:
    assert slot is not None
    return slot


def test_connections_up_to_the_bound_are_accepted_and_the_next_gets_a_refusal() -> None:
    connections = ConnectionLimiter(2, 2)
    first, second = taken(connections.take("a")), taken(connections.take("b"))
    assert first.refusal is second.refusal is None
    refused = taken(connections.take("c"))
    assert refused.refusal is not None
    assert "http_connections_max" in refused.refusal.message
    first.give_back()
    assert taken(connections.take("c")).refusal is None


def test_one_address_has_a_bound_of_its_own() -> None:
    connections = ConnectionLimiter(10, 1)
    first = taken(connections.take("a"))
    refused = taken(connections.take("a"))
    assert refused.refusal is not None
    assert "http_connections_per_address_max" in refused.refusal.message
    assert taken(connections.take("b")).refusal is None
    first.give_back()
    assert taken(connections.take("a")).refusal is None


def test_a_connection_slot_is_given_back_once() -> None:
    connections = ConnectionLimiter(1, 1)
    slot = taken(connections.take("a"))
    slot.give_back()
    slot.give_back()
    assert connections.count == 0
    taken(connections.take("a"))
    assert taken(connections.take("a")).refusal is not None


def test_connections_beyond_the_bound_of_refusals_are_closed_without_an_answer() -> None:
    connections = ConnectionLimiter(1, 1)
    taken(connections.take("a"))
    reported = [taken(connections.take("a")) for _ in range(REFUSALS_OPEN_MAX)]
    assert connections.take("a") is None
    assert connections.refused_count == REFUSALS_OPEN_MAX + 1
    reported[0].give_back()
    assert taken(connections.take("a")).refusal is not None
