"""Holds the part of etcd's protocol that Tidelog calls, and the code that `make proto` generates from it."""
