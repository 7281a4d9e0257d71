"""What the cluster agrees on: see README.md in this folder."""
