"""One run, from what is prepared to what is left."""
