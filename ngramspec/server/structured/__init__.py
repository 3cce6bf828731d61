"""From JSON schemas and patterns to GBNF."""
