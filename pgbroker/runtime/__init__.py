"""Processes: one supervisor wires claimer, executors, settler, heartbeats and listener together."""
