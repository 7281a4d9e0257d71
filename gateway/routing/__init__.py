"""Takes each request to the leader of its partition: to the log of this broker, or over the network to another broker.

    cluster_log.py ─▶ local_log.py (led here)
                  └─▶ forwarder.py ─▶ forward_queue.py ─▶ forward_sender.py ─▶ peer_channels.py
    cluster_fetch.py ─▶ peer_reader.py | follower_fetch.py (KIP-392)      leader_lookup.py names leaders
    silent_leaders.py limits how long cluster_log.py waits for a leader's answer

Entry: `ClusterLog` in cluster_log.py.

Invariants:
- A request takes at most one hop; the receiving broker never forwards it again.
- Batches of one partition reach its leader in order.
- An answer with an older leader epoch than this broker knows is not passed on.

Must not import a listener, gateway/groups or gateway/records.
"""
