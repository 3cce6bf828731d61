"""Grammars: Matcher follows a text in Rules, by sets of stacks, over the Tokens of a vocabulary."""
