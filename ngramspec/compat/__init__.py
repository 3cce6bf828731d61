"""Interfaces of other projects, implemented by our drafters; no host is imported here."""
