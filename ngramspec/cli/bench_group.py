"""`ngramspec bench`: measurements on your machine, with your model."""

from __future__ import annotations

import click

from ngramspec.cli.bench_calibrate import calibrate
from ngramspec.cli.bench_e2e import e2e
from ngramspec.cli.bench_exactness import exactness
from ngramspec.cli.bench_replay import replay
from ngramspec.cli.group import CommandGroup


@click.group(cls=CommandGroup)
def bench() -> None:
    """Measure what depends on model and machine."""


bench.add_command(calibrate)
bench.add_command(e2e)
bench.add_command(exactness)
bench.add_command(replay)
