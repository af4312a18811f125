"""Faults made on purpose under a steady load, and the proof from the rows that no job was harmed."""
