"""Strict readers of the data sets' published formats: paths in, numpy arrays out, or an InputError."""
