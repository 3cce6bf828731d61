"""Recorded requests are replayed: outputs play the target, and what was drafted is counted."""
