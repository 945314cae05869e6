"""Local training: the one loop, and the executors behind one interface."""
