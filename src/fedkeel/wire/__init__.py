"""What travels between server and clients, how it is changed on its way, and what it weighs."""
