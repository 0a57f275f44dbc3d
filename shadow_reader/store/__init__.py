"""What is kept: the journal. Knows named bytes and events, never a model."""
