"""Go's text/template, rendered within limits: templates are untrusted.

Supported: text with {{ and }}, {{- and -}}, comments; if, else if, with, range (lists, maps,
counts), else, break, continue; define, template, block; variables, fields, parentheses, pipes;
literals; and, or, not, eq, ne, lt, le, gt, ge, len, index, slice, print, printf, println; functions
of the caller. Not supported: html, js, urlquery, call, complex numbers, hexadecimal floats, and the
rarer verbs of printf. How values differ from Go's: values.py.
"""

from ngramspec.text.gotemplate.functions import TemplateFunction
from ngramspec.text.gotemplate.template import Template
from ngramspec.text.gotemplate.values import JsonList, JsonMap, Record, TemplateProblem, json_text

__all__ = [
    "JsonList",
    "JsonMap",
    "Record",
    "Template",
    "TemplateFunction",
    "TemplateProblem",
    "json_text",
]
