"""Shared by the correctness tests: recordings, and one way to speak to native and reference."""
