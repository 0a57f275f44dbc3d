"""What can be run again offline: recorded sessions, rebuilds."""
