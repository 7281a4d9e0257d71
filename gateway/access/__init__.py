"""Decides who may do what at the listeners: authentication, ACLs, quotas and the audit log.

    guard.py ─▶ authentication.py (API key, OIDC token, certificate, peer token) ─▶ authorization.py ─▶ handler
            └─▶ quotas.py                                                     denials ─▶ audit_log.py

Entry: `AccessGuard` in guard.py stands before every call of both listeners; bootstrap.py builds it from the settings.

Invariants:
- permissions.py has a row for each route and method; a call without a row is refused.
- A name of a topic or a group is checked before it is looked up, so a refusal does not reveal what exists.
- A broker that cannot prove its view of keys and ACLs within `access_max_age_ms` serves no client calls.
- Neither secrets nor payloads appear in the audit log.

Stored keys, ACLs and quotas are in metadata/access. Must not import a listener.
"""
