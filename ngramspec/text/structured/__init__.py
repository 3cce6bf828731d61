"""From JSON schemas, patterns and Lark's grammars to GBNF."""
