"""Serves consumer groups over HTTP: the broker acts as the member for a client that has no SDK.

    routes.py ─▶ members.py (join, leave) | records.py ─▶ member_fetch.py (read) | offsets.py (commit) | admin.py

Entry: `HttpGroups` in routes.py. cursor.py is the position that the client receives and sends back.

Invariants:
- A broker keeps nothing for a member between requests, so any broker may serve the next one.
- A cursor commits only forward.

Asks coordinators through `BrokerApi.groups` (gateway/groups). Must not import FastAPI or gateway/grpc.
"""
