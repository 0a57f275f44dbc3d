"""A small model that reads along with a big one and can be asked about what it has read."""
