"""What all protocols need to answer: streams, figures, log-probabilities."""
