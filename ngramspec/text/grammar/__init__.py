"""Grammars in GBNF, llama.cpp's format, as rules that the native matcher follows."""

from ngramspec.text.grammar.gbnf import read_grammar

__all__ = ["read_grammar"]
