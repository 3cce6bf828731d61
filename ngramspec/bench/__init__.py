"""What drafts bring: replays of recorded outputs, comparisons, a search, and times on a model."""
