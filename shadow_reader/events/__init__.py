"""What can happen: typed events, their codec, and the pure fold. No I/O, no clock, no torch."""
