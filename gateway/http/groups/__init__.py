"""Serves consumer groups over HTTP: the broker is the member on behalf of a client that has no SDK.

routes.py dispatches; members.py joins and leaves, records.py and member_fetch.py read, offsets.py and cursor.py commit, admin.py
describes and resets groups.
"""
