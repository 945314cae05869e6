"""The devices: how fast they are, and the virtual clock they live by."""
