"""The tests on every supported pair of Python, Django and PostgreSQL, oldest and newest dependencies, a pooler."""
