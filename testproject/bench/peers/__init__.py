"""
Drivers of other job queues, one file each. Each runs inside the environment of its peer, not of this project.

`python -m testproject.bench.peers.NAME MODE JOBS URL` works on an empty database and prints one JSON object.
Only `ran` of this project is imported there.
"""
