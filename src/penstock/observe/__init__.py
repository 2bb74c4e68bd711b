"""What is told of a running program: its log."""
