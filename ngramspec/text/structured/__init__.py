"""From JSON schemas, patterns and Lark's grammars to GBNF."""

from ngramspec.text.structured.errors import GrammarError

__all__ = ["GrammarError"]
