"""Connections, keys, origins: what every request passes first."""
