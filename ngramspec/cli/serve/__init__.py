"""`ngramspec serve`: its command, where its options come from, and how it runs and shuts down."""

from ngramspec.cli.serve.command import serve

__all__ = ["serve"]
