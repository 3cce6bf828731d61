"""Responses of all protocols: streams, timings, log-probabilities."""
