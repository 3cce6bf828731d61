"""`ngramspec bench`: measurements on your machine, with your model; a file per command."""

from __future__ import annotations

import click

from ngramspec.cli.bench.calibrate import calibrate
from ngramspec.cli.bench.e2e import e2e
from ngramspec.cli.bench.exactness import exactness
from ngramspec.cli.bench.replay import replay
from ngramspec.cli.command import CommandGroup


@click.group(cls=CommandGroup)
def bench() -> None:
    """Measure what depends on model and machine."""


for command in (calibrate, e2e, exactness, replay):
    bench.add_command(command)
