"""Real machines instead of simulated ones: the world behind a transport, and the messages that travel."""
