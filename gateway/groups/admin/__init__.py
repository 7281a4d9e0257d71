"""Lists, describes, resets and deletes groups on behalf of operators: at this broker (local_admin.py) or at any (admin.py).

Requests and answers are the messages of gateway/proto/groups.proto: gRPC sends them as they are, and brokers forward them. lag.py
and seek.py compute lags and the offsets that a group is reset to; descriptions.py hides what the caller may not see.
"""
