"""What all protocols need to answer: streams, timings, log-probabilities."""
