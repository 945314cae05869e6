"""Tables and figures, computed from the files of run folders alone."""
