"""ngram-mod: HashPool and the drafter that reads and fills it."""
