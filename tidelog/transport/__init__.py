"""Connects the SDK to brokers: addresses, channels, credentials, routes to leaders, and the meaning of RPC errors.

    connection.py ─▶ routes.py (who leads) ─▶ channels.py (gRPC)      reachability.py chooses whom to ask next

Entry: `Connection` in connection.py. rpc_errors.py turns statuses into the error tree; retry.py decides pauses.

Invariant: a call that may have written is repeated only if its error says that nothing was written, or if it is idempotent.

Must not import the producer, the consumer or the group.
"""
