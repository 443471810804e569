"""``ergon boundary serve|certs``: run the node of one zone; certificates for trying it out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ergon_framework.cli.boundary_node import Ca, Cert, Crl, Key, ZoneName
from ergon_framework.cli.command_run import (
    ConfigPath,
    JsonFlag,
    LogFormat,
    LogLevel,
    announce,
    finite,
    observed_service,
)
from ergon_framework.cli.output import show_one

certs_app = typer.Typer(
    help="Make certificates for development and tests. Do not use them in production."
)

Folder = Annotated[
    Path,
    typer.Option(
        "--folder", metavar="DIR", help="The folder of the certificates; made if it is missing."
    ),
]
Days = Annotated[
    float,
    typer.Option(
        metavar="N",
        min=0.001,
        max=36_500,
        callback=finite,
        help="How many days the certificate is valid.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]


@certs_app.command("ca")
def make_authority(
    folder: Folder = Path("certs"),
    days: Days = 3650,
    force: Force = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a certificate authority: ca.pem and ca.key.

    Example: ergon boundary certs ca --folder certs
    """
    from ergon_framework.boundary.certs import make_ca

    cert, key = make_ca(folder, days=days, force=force)
    show_one({"ca": str(cert), "key": str(key)}, as_json=as_json)


@certs_app.command()
def issue(
    zone: Annotated[
        str, typer.Argument(metavar="ZONE", help="The zone that the certificate identifies.")
    ],
    folder: Folder = Path("certs"),
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help=(
                "A host name or address of the node; may be repeated [default: localhost, "
                "127.0.0.1, ::1]."
            ),
        ),
    ] = None,
    days: Days = 365,
    force: Force = False,
    as_json: JsonFlag = False,
) -> None:
    """Make ZONE.pem and ZONE.key for a zone.

    They are signed by the authority in the same folder: run `ergon boundary certs ca` first.

    Example: ergon boundary certs issue plant --host plant.example
    """
    from ergon_framework.app.zones import check_zone_name
    from ergon_framework.boundary.certs import HOSTS
    from ergon_framework.boundary.certs import issue as issue_certificate

    hosts = host or HOSTS
    cert, key = issue_certificate(
        folder, check_zone_name(zone), hosts=hosts, days=days, force=force
    )
    view = {"cert": str(cert), "key": str(key), "ca": str(folder / "ca.pem")}
    show_one({"zone": zone, **view}, as_json=as_json)


def serve(
    zone: ZoneName = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder of the zone's log and objects; made if it is missing."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The store of the zone's log [default: an SQLite file in the folder].",
        ),
    ] = None,
    objects: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A bucket or folder for the zone's objects [default: in the zone's folder].",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The address to serve on; port 0 takes a free one."),
    ] = None,
    health_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A second address, in plain HTTP, that answers /healthz and /readyz only.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Serve plain HTTP without certificates; allowed on a loopback address only.",
        ),
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option("--peer", metavar="NAME=URL", help="Pull from this zone; may be repeated."),
    ] = None,
    cert: Cert = None,
    key: Key = None,
    ca: Ca = None,
    crl: Crl = None,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The policy: which certificate may do what (TOML)."),
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            min=1,
            help="How large the log may become; appends are refused from 80 % of it on.",
        ),
    ] = None,
    strict_ids: Annotated[
        bool,
        typer.Option(
            "--strict-ids",
            help="Refuse message ids that look random or made from the time of sending.",
        ),
    ] = False,
    config: ConfigPath = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
    as_json: JsonFlag = False,
) -> None:
    """Run the node of a zone until SIGTERM or SIGINT.

    Prints one line when it is ready: ready zone=NAME listen=HOST:PORT. Options override
    [zones.NAME] in the settings. The first signal lets running requests finish, and the exit code
    is 0; a second one ends the process at once. Whatever was acknowledged is on disk in either
    case.

    A zone whose log is on a server may have several nodes, on several machines. A zone on files has
    one node at a time.

    Example: ergon boundary serve --zone plant --data plant --insecure
    """
    from ergon_framework.app.node import serve as run
    from ergon_framework.app.observability import finish_telemetry, set_up_logging
    from ergon_framework.app.settings import load_settings
    from ergon_framework.app.zones import peers_of, zone_setup

    set_up_logging(log_level, log_format)
    paths = {"data": data, "cert": cert, "key": key, "ca": ca, "crl": crl, "policy": policy}
    setup = zone_setup(
        config,
        zone,
        {
            **{name: path and str(path.absolute()) for name, path in paths.items()},
            "store": store,
            "objects": objects,
            "listen": listen,
            "health_listen": health_listen,
            "insecure": insecure or None,
            "peers": peers_of(peer),
            "capacity_bytes": capacity,
            "strict_ids": strict_ids or None,
        },
    )

    def ready(address: str) -> None:
        view = {"zone": setup.name, "listen": address}
        announce(f"ready zone={setup.name} listen={address}", view, as_json=as_json)

    try:
        # finish_telemetry comes after this block, so that spans which end with it are exported.
        with observed_service(load_settings(config), f"zone {setup.name}", as_json=as_json):
            run(setup, ready)
    finally:
        finish_telemetry()
