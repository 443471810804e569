"""``ergon boundary certs``: certificates for trying things out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ergon_framework.cli.output import show_one
from ergon_framework.cli.session import JsonFlag

app = typer.Typer(help="Make a development authority, and certificates for zones; not for a plant.")

Folder = Annotated[
    Path, typer.Option("--folder", metavar="DIR", help="Where the files are, or will be.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]


@app.command("ca")
def make_authority(
    folder: Folder = Path("certs"),
    days: Annotated[float, typer.Option(metavar="N", min=0.001, help="Valid so long.")] = 3650,
    force: Force = False,
    as_json: JsonFlag = False,
) -> None:
    """Make ca.pem and ca.key."""
    from ergon_framework.boundary.certs import make_ca

    cert, key = make_ca(folder, days=days, force=force)
    show_one({"ca": str(cert), "key": str(key)}, as_json=as_json)


@app.command()
def issue(
    zone: Annotated[str, typer.Argument(metavar="ZONE", help="Whom the certificate speaks for.")],
    folder: Folder = Path("certs"),
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="A name or address of the node; may be repeated [localhost, 127.0.0.1, ::1].",
        ),
    ] = None,
    days: Annotated[float, typer.Option(metavar="N", min=0.001, help="Valid so long.")] = 365,
    force: Force = False,
    as_json: JsonFlag = False,
) -> None:
    """Make ZONE.pem and ZONE.key, signed by the authority in the folder."""
    from ergon_framework.app.zones import check_zone_name
    from ergon_framework.boundary.certs import HOSTS
    from ergon_framework.boundary.certs import issue as issue_certificate

    hosts = host or HOSTS
    cert, key = issue_certificate(
        folder, check_zone_name(zone), hosts=hosts, days=days, force=force
    )
    shape = {"cert": str(cert), "key": str(key), "ca": str(folder / "ca.pem")}
    show_one({"zone": zone, **shape}, as_json=as_json)
