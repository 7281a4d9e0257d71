"""Authenticates Kafka clients, and answers operators about ACLs, quotas and SCRAM users.

    connection ─▶ authentication.py ─▶ sasl.py (PLAIN, OAUTHBEARER) | scram.py ─▶ the principal of the connection
    handlers   ─▶ acls.py ─▶ acl_bindings.py     client_quotas.py     scram_users.py     authorized_operations.py

Entry: `KafkaAuthentication` in authentication.py; handlers.py calls the others. The rights themselves are in gateway/access and
metadata/access; this package translates them to Kafka's terms.

Invariants:
- If authentication is on, a request is handled only after its client has authenticated.
- A connection keeps the principal that it has first proved by SASL.
- A failed exchange tells the client nothing about its cause.

Must not import gateway/http or gateway/grpc.
"""
