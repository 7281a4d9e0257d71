"""The doors, and the broker that owns their tasks: see README.md in this folder."""
