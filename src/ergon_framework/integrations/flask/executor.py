"""The module that executors load when ``flask`` starts a worker: the application, then its
handlers.
"""

import os

from flask.cli import ScriptInfo

from ergon_framework.integrations.flask import FLASK_APP, loaded_ergon

app = loaded_ergon(ScriptInfo(app_import_path=os.environ.get(FLASK_APP)))
