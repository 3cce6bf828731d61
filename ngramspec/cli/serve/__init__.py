"""`ngramspec serve`: its command, what shapes its options, and how the server runs and ends."""

from ngramspec.cli.serve.command import serve

__all__ = ["serve"]
