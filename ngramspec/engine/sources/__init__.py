"""What drafts for the engine's slots: n-gram drafters, models, heads, what the user expects."""
