"""Arguments and options that several verbs share."""

from typing import Annotated

import typer

Mount = Annotated[
    str | None,
    typer.Argument(metavar="NAME|FILE|MOUNTPOINT", help="Default: the only mount there is.", show_default=False),
]
Configuration = Annotated[
    str | None,
    typer.Argument(metavar="NAME|FILE", help="Default: the only configuration there is.", show_default=False),
]
Disks = Annotated[
    str | None, typer.Option("--disks", metavar="DISK,DISK,...", help="The disks, instead of a configuration.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done; change nothing.")]
Json = Annotated[bool, typer.Option("--json", help="The result as one JSON object.")]
PoolJson = Annotated[bool, typer.Option("--json", help="One JSON object: the pool, its disks and the findings.")]
