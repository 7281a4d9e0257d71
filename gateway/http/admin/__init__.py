"""Serves the administration of topics, access and the cluster, and the OpenAPI document of all routes.

Entries: api.py (topics, partitions, settings, drains) and access.py (keys, ACLs, quotas), both FastAPI. openapi.yaml describes the
routes; openapi.py loads it.

Invariants:
- `validate_only` checks a change and makes none.
- A refusal of a body has the same form as every other error.

No other package imports FastAPI.
"""
