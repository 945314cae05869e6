"""The report: one HTML page for a run or a comparison, which needs no network and no other file."""
