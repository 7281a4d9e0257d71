"""Background rewriting of the log: see README.md in this folder."""
