"""Drafts that pay: what passes cost, what claims are worth, and AutoPolicy."""
