"""Training by compiled kernels, where they were built and the network is one that they know."""
