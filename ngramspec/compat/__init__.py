"""Surfaces of other projects over the drafters of this one; no host is imported here."""
