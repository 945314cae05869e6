"""The run folder: rows, checkpoints, the lock."""
