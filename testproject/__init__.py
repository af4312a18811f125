"""A small project that runs pgbroker: for its tests, its demo and its benchmarks. `python3 testproject`."""
