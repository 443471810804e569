"""``ergon boundary``: a zone's node, and everything an operator does with it."""

from __future__ import annotations

import typer

from ergon_framework.cli import (
    boundary_admin,
    boundary_consumers,
    boundary_facts,
    boundary_objects,
    boundary_outbox,
    boundary_serve,
)

app = typer.Typer(
    help="Run a zone's node, look after it, and pass facts and artifacts by hand.",
    epilog="Commands that ask a node find it by --url, or by the zone of the settings.",
)
app.command()(boundary_serve.serve)
app.command()(boundary_admin.status)
app.command()(boundary_facts.append)
app.command()(boundary_objects.put)
app.command()(boundary_objects.get)
app.command()(boundary_facts.fetch)
app.command()(boundary_facts.confirm)
app.command()(boundary_facts.lookup)
app.add_typer(boundary_consumers.consumers_app, name="consumers")
app.add_typer(boundary_consumers.quarantine_app, name="quarantine")
app.command()(boundary_admin.gaps)
app.command()(boundary_admin.seal)
app.command("open")(boundary_admin.open_gate)
app.command()(boundary_admin.verify)
app.command()(boundary_admin.backup)
app.command()(boundary_admin.restore)
app.add_typer(boundary_outbox.app, name="outbox")
app.add_typer(boundary_serve.certs_app, name="certs")
