"""Reading a corpus: files, documents, duplicates and pieces to tokenise."""

from ngramspec.lab.corpus.dedup import DigestSet, document_digest, is_held_out
from ngramspec.lab.corpus.documents import Document, ReadOptions, pieces, read_documents
from ngramspec.lab.corpus.inputs import CorpusPlan, Unit, find_units
from ngramspec.lab.corpus.problems import Problem, Problems

__all__ = [
    "CorpusPlan",
    "DigestSet",
    "Document",
    "Problem",
    "Problems",
    "ReadOptions",
    "Unit",
    "document_digest",
    "find_units",
    "is_held_out",
    "pieces",
    "read_documents",
]
