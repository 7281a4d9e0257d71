"""The fixture that users get, for our own tests of what users get."""

from tidelog.pytest_plugin import tidelog_broker

__all__ = ["tidelog_broker"]
