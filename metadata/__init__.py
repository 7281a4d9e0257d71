"""Stores what the cluster agrees on: topics, sessions, leadership, consumer groups and access, in etcd or SQLite.

    group_member/ | controller/ ─▶ groups/ access/ topics/ cluster/ backup/ ─▶ store/ ─▶ errors.py, model.py

Entry: `open_metadata` in store/open.py. model.py has the nouns that every package shares, errors.py the one tree of errors.

Invariants:
- The metadata never decide which records are committed; the bucket does.
- Every key is spelled in store/keys.py.
- Whatever was decided on a stale read is refused by a compare in its transaction.

Must not import segments, gateway or anything above.
"""
