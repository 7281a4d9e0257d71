"""Holds the commands that run servers: `dev`, `serve` and `compact`. They import the gateway when they run, and not before."""
