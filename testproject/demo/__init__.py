"""
The broker on a real workload: `python3 testproject demo`.

Demos in two terminals share the database (of the checkout, or the one in `DATABASE_URL`) and the admin's
user, and their workers work off each other's jobs. Each has its own port, processes, logs and summary. What
a killed demo left behind is worked off by the next one.
"""
