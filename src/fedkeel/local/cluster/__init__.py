"""Training on the machines of a Ray cluster: the only folder that imports ray."""
