"""What clients' mini-batches say about weights: of one client by autograd, or of a whole stack at once."""
