"""``ergon check``: what the settings describe, and everything that is wrong with them."""

from __future__ import annotations

import os
import sys

from ergon_framework.cli.output import keep_stdout, printable, show_list
from ergon_framework.cli.session import ConfigPath, JsonFlag


def check(config: ConfigPath = None, as_json: JsonFlag = False) -> None:
    """Check the settings file and say what would run; nothing is connected, stored or started.

    The classes it names are imported, also from the working directory: code at the top level of
    your modules runs, so check no settings of somebody whose code you would not run.

    Every mistake is told at once, with its file, its line and what to do; then the exit code is 2.
    """
    from ergon_framework.app.diagnostics.check import check as checked
    from ergon_framework.app.diagnostics.check import notes
    from ergon_framework.app.settings import settings_file

    with keep_stdout(as_json):
        rows = checked(config)
    if not rows:
        file = settings_file(config, os.environ)
        where = "there is no settings file" if file is None else f"{file} describes nothing to run"
        told = f"note: {where}: no task, zone, executor, schedule, provider or server"
        print(printable(told), file=sys.stderr, flush=True)
    for told in notes(config):
        print(printable(f"note: {told}"), file=sys.stderr, flush=True)
    columns = ["kind", "name", "what", "where", "processes"]
    show_list((row.to_dict() for row in rows), columns, as_json=as_json)
