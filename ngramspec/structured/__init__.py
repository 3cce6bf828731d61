"""From JSON schemas, patterns and Lark's grammars to GBNF."""

from ngramspec.structured.errors import GrammarError

__all__ = ["GrammarError"]
