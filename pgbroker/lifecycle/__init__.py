"""What can happen to a job: one verb, one file, one statement. Verbs do not import verbs."""
