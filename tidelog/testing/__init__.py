"""Starts a broker for the tests of a program that uses Tidelog.

    def test_orders_are_billed(tidelog_broker):
        with tidelog.connect_sync(tidelog_broker.http_url) as log:
            ...

    pytest_plugin.py (the fixture) ─▶ broker_process.py ─▶ `tidelog dev` on free ports of the loopback, in a temporary folder

Entries: `BrokerProcess` in broker_process.py; the pytest fixture `tidelog_broker` in pytest_plugin.py.

Invariants:
- A broker that a test started ends with the test session, by its process id.
- After `kill` and `start` the broker has the same addresses and the same data.

Must not import the gateway: the broker is a process.
"""
