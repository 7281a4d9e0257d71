"""Connects the SDK to brokers: addresses, channels, credentials, routes to leaders, and the meaning of RPC errors.

    connection.py ─▶ routes.py (who leads) ─▶ channels.py (gRPC)      reachability.py chooses whom to ask next

Entry: `Connection` in connection.py. rpc_errors.py turns statuses into the error tree; retry.py decides pauses.

Invariant: a call that may have written is repeated only if its error says that nothing was written, or if it is idempotent.

How a client reacts on the way to a leader:

- An answer names another leader, or a newer epoch: The client reads the route, and the partition moves once it has no
  unanswered batch.
- A connection breaks, or a broker refuses: The same, and unanswered requests are sent again (see below).
- A broker with an outstanding answer is silent for 1 s (a fetch: 1 s longer than its poll): The client asks another broker for
  the leader, once a second. If the leader changed, the partition moves. Otherwise the client waits.
- The leader cannot be connected within 2 s (a load balancer, a private address): Its partitions go through a reachable broker,
  logged once. The leader is tried again every 10 s.
- An answer describes a former topic of the name (lower leader epochs), or does not help: an unreachable or old leader, none, or
  `metadata_age_ms` above 5 s: The broker may be cut off from etcd. The client asks others in turn and follows the newest leader
  epoch.
- A broker may have to wait for a leader: These partitions get a stream of their own. The client asks for the leader every 50
  ms, or every ten times the duration of an answer.

Must not import the producer, the consumer or the group.
"""
