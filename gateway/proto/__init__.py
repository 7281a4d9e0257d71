"""Holds the protocol between clients and brokers: .proto files, generated code, and the codecs around it.

`make proto` writes the generated code, which is committed. status.py translates between errors and google.rpc.Status;
group_messages.py has the calls of group members.

Entries: `to_status` and `from_status` in status.py.

Invariant: nothing here performs I/O. The SDK imports this package and no other package of the gateway.
"""
