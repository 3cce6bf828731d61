"""What goes back to a client, of all protocols: streams, timings, log-probabilities."""
