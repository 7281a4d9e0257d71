"""The log on the bucket: see README.md in this folder."""
