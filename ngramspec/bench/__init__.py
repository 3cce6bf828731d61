"""Replaying recorded outputs as the target's choice: how well drafters would have drafted."""
