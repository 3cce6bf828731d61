"""ngram-simple, ngram-map-k and ngram-map-k4v: over an index of the slot's own text."""
