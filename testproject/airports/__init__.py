"""Airports of the world: a small real application whose work is done by jobs."""
