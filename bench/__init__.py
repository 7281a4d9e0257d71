"""The benchmarks: each figure beside its target, each floor measured in the same run. `make bench` runs them all."""
