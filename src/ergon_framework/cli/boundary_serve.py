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

certs_app = typer.Typer(help="Make certificates for development, not for a plant.")

Folder = Annotated[
    Path, typer.Option("--folder", metavar="DIR", help="Where the files are, or will be.")
]
Days = Annotated[
    float,
    typer.Option(metavar="N", min=0.001, max=36_500, callback=finite, help="Valid so long."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]


@certs_app.command("ca")
def make_authority(
    folder: Folder = Path("certs"),
    days: Days = 3650,
    force: Force = False,
    as_json: JsonFlag = False,
) -> None:
    """Make ca.pem and ca.key."""
    from ergon_framework.boundary.certs import make_ca

    cert, key = make_ca(folder, days=days, force=force)
    show_one({"ca": str(cert), "key": str(key)}, as_json=as_json)


@certs_app.command()
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
    days: Days = 365,
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
    view = {"cert": str(cert), "key": str(key), "ca": str(folder / "ca.pem")}
    show_one({"zone": zone, **view}, as_json=as_json)


def serve(
    zone: ZoneName = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of its log and its objects; made if missing."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The store of its log [default: a file in the folder]."),
    ] = None,
    objects: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A bucket or folder [default: in the zone's folder]."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where to serve; port 0 is any free one."),
    ] = None,
    health_listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Plain HTTP for probes: /healthz and /readyz only."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Plain HTTP, on a loopback address only.")
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
        Path | None, typer.Option(metavar="FILE", help="Who may do what (TOML).")
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES", min=1, help="What the log may hold; appends are refused from 80 % on."
        ),
    ] = None,
    strict_ids: Annotated[
        bool, typer.Option("--strict-ids", help="Refuse message ids that look unstable.")
    ] = False,
    config: ConfigPath = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
    as_json: JsonFlag = False,
) -> None:
    """Run a zone's node until SIGTERM or SIGINT.

    Prints one line when it is ready: ready zone=NAME listen=HOST:PORT. Options override what
    [zones.NAME] in the settings says. The first signal lets running requests finish, exit code 0;
    a second one ends the process at once. What was acknowledged is on disk in either case.
    A log on a server may have several nodes, on several machines; files have one node at a time.
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
