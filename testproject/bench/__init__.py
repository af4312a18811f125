"""Measurements: pgbroker beside raw loops on the same schema."""
