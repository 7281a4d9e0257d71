"""Serves HTTP: records, consumer groups, administration, status and health.

    server.py ─▶ app.py ─▶ guard.py ─▶ records/ | groups/ | admin/ (FastAPI) | status.py

Entry: `HttpApp` in app.py; `HttpServer` in server.py runs it in the broker's event loop on uvicorn's protocol.

Invariants:
- A request's body is read only after its headers are checked and the log's buffer has admitted it.
- Every error is an RFC 9457 problem document (problem_details.py).
- Records and groups do not load FastAPI.

Asks the broker only through gateway/api.py. Must not import gateway/grpc.
"""
