"""`ngramspec cache`: commands on statistics files."""

from __future__ import annotations

import click

from ngramspec.cli.cache.inspect import inspect
from ngramspec.cli.cache.verify import verify
from ngramspec.cli.cache.write import convert, merge, prune

EPILOG = """\b
Examples:
  ngramspec cache inspect docs.ngx
  ngramspec cache merge monday.ngc tuesday.ngc -o week.ngc
  ngramspec cache prune week.ngc -o small.ngc --max-size 10M
"""


@click.group("cache", epilog=EPILOG)
def cache() -> None:
    """Inspect, check, merge, convert and prune statistics files.

    Such files come from build-cache, from drafters that learn, and from llama.cpp (lookup caches).
    inspect and verify take any of them; merge counts of n-grams and pools of ngram-mod; convert
    and prune counts of n-grams.
    """


for command in (inspect, verify, merge, convert, prune):
    cache.add_command(command)
