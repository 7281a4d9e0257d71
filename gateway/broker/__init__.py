"""Puts the parts of a broker together, and starts and stops them in order.

    process/broker_process.py ─▶ Broker: log, cluster, groups, access, listeners ─▶ metrics.py declares what it measures

Entry: `Broker` in broker.py, which implements gateway/api.py for the listeners.

Invariants:
- A listener is ready only once the parts that it needs have started.
- A broker that stops hands over its partitions and flushes what producers wait for, before its listeners close.

Must not import: gateway/process.
"""
