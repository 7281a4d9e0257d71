"""Holds what all commands share: the root command, contexts, credentials, output, progress and exit codes."""
