"""Runs `tidelog doctor`: checks of settings, bucket, etcd and TLS, each of which ends in a diagnosis with a remedy."""
