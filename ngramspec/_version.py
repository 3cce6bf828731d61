"""The version, one line read by everything."""

__version__ = "0.1.0"
