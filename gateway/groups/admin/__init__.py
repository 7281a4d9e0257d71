"""Lists, describes, resets and deletes groups on behalf of operators: at this broker (local_admin.py) or at any (admin.py).

messages.py is the form in which brokers forward these calls; lag.py and seek.py compute lags and the offsets that a group is reset
to.
"""
