"""What is fuzzed, a module per target; each has a TARGET."""
