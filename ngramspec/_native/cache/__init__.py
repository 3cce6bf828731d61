"""ngram-cache: counts of followers per n-gram, of a slot, shared, and of a file."""
