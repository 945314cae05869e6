"""Gradients of a stack of clients: closed forms for fully connected networks, vmap for the rest."""
