"""Connections, keys, origins: the checks that every request passes first."""
