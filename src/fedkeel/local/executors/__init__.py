"""Who trains, on which cores."""
