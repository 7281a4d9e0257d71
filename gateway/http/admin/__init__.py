"""Serves the administration of topics, access and the cluster over HTTP, and the OpenAPI document of all routes.

api.py and access.py use FastAPI, which no other package may import.
"""
