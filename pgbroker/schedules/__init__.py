"""
When jobs are created again and again, and by whom.

`declare` is what the code says and `sync` makes rows of it; `decide` and `tick` create what is due; `operate` is
for people. Rows name job types by their registry key alone.
"""
