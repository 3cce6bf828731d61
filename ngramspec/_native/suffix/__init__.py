"""suffix: the longest matches in texts, how likely each token is, and the drafter."""
