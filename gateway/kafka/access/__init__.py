"""Decides who a Kafka client is, and answers what operators ask about ACLs, quotas and SCRAM users.

    connection ─▶ authentication.py ─▶ sasl.py: PLAIN, OAUTHBEARER, scram.py     acls.py, client_quotas.py, scram_users.py

Invariant: a request of a client that has not authenticated is not handled, where authentication is on.
"""
