"""Readers, sources, data sets, partitions: who has what."""
