"""Starts a broker for the tests of a program that uses Tidelog.

Entries: `BrokerProcess` in broker_process.py; the pytest fixture `tidelog_broker` in pytest_plugin.py.

Invariant: a broker that a test started ends with the test session.
"""
