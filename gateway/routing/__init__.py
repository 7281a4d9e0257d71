"""Takes each request to the leader of its partition: to the log of this broker, or over the network to another one.

    cluster_log.py ─▶ local_log.py (led here)
                   ─▶ forwarder.py ─▶ forward_queue.py ─▶ forward_sender.py ─▶ peer_channels.py     produce
                   ─▶ cluster_fetch.py ─▶ peer_reader.py | follower_fetch.py (closest replica, KIP-392)     fetch

Must not import what a listener is or what a group is.
"""
