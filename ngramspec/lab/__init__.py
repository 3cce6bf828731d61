"""Corpora, statistics files built from them, recorded requests, and what drafts bring on these."""
