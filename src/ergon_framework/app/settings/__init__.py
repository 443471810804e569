"""Settings: ``ergon.toml``, overridden by ``ERGON_…`` variables.

``limit`` in the table ``[tasks.orders.consumer.loop]`` and the environment variable
``ERGON_TASKS__ORDERS__CONSUMER__LOOP__LIMIT`` are the same key; the variable wins. A variable
without ``__`` is no setting and is left alone.

Where to look first: ``loader`` reads everything, lays variables over tables and collects all
problems; ``sections`` has the models of the common sections, and each other part brings its own.
``source`` knows on which line a key stands, and ``secrets`` reads secrets from variables and files
and keeps them out of messages. ``stores`` says which store a part uses.
"""

from ergon_framework.app.settings.loader import (
    FILE,
    PREFIX,
    check_server_packages,
    examine_settings,
    load_settings,
    policy_from_env,
    policy_from_toml,
    register_section,
    settings_file,
)
from ergon_framework.app.settings.secrets import revealed
from ergon_framework.app.settings.sections import (
    ConnectorSettings,
    ServerSettings,
    ServiceSettings,
    Settings,
    StoreSettings,
    TaskSettings,
    TelemetrySection,
)

__all__ = [
    "FILE",
    "PREFIX",
    "ConnectorSettings",
    "ServerSettings",
    "ServiceSettings",
    "Settings",
    "StoreSettings",
    "TaskSettings",
    "TelemetrySection",
    "check_server_packages",
    "examine_settings",
    "load_settings",
    "policy_from_env",
    "policy_from_toml",
    "register_section",
    "revealed",
    "settings_file",
]
