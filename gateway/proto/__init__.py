"""Holds the protocol between clients and brokers: .proto files, the code that `make proto` generates, and codecs."""
