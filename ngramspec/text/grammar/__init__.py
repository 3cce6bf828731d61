"""Grammars: GBNF, llama.cpp's format, and Lark as llguidance has it, for the native matchers."""

from ngramspec.text.grammar.gbnf import read_grammar

__all__ = ["read_grammar"]
