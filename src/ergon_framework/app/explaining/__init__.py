"""Why something is where it is: a job, a transaction, a fact, a provider call, in plain words.

Each kind has a module that looks into the stores of the settings. Nothing is made or changed by
asking: a store that is not there is a place where nothing was found.
"""

from __future__ import annotations

from ergon_framework.app.explaining.answers import Asked, Explanation
from ergon_framework.app.explaining.looking import KINDS, explain

__all__ = ["KINDS", "Asked", "Explanation", "explain"]
