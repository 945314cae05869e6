"""What a user says: an experiment, in YAML, on the command line, in Python."""
