"""Starts a broker for the tests of a program that uses Tidelog. Entries: `BrokerProcess`, and the fixtures of pytest_plugin.py."""
