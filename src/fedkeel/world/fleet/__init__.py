"""The devices: how fast they are, and when they are available."""
