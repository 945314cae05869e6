"""A deployment: the server of a run on real machines, the silos on the nodes, and what starts and watches them."""
