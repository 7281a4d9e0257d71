"""Serves HTTP: records, consumer groups, administration, status and health.

    server.py ─▶ app.py ─▶ guard.py ─▶ records/ | groups/ | admin/ (FastAPI)

Asks the broker only through gateway/api.py. Must not import gateway/grpc: what both need lies below them.
"""
