"""Whom facts may be addressed to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ergon_framework.boundary.node.node import certificates_of
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import ConfigurationError, FactInvalidError
from tests.cli.boundary_node import message

pytestmark = pytest.mark.req("BOUNDARY:badinput")


def test_a_typo_in_to_zone_is_refused_where_zones_are_known(tmp_path: Path) -> None:
    """The zone itself, its peers and those of the setting are; without it, anybody is."""
    given = {"data": str(tmp_path), "known_zones": ["hq"], "peers": {"lab": "http://127.0.0.1:1"}}
    with LocalZone.open("plant-a", ZoneSettings.model_validate(given)) as zone:
        for to_zone in ("hq", "lab", "plant-a"):
            whole = json.loads(message(f"to-{to_zone}", to_zone=to_zone))
            zone.append(whole["envelope"], whole["fact"])
        whole = json.loads(message("typo", to_zone="qh"))
        with pytest.raises(FactInvalidError, match="is not a zone that is known here") as caught:
            zone.append(whole["envelope"], whole["fact"])
        assert "known_zones" in str(caught.value)
    with LocalZone.open("plant-a", ZoneSettings(data=str(tmp_path))) as zone:
        zone.append(whole["envelope"], whole["fact"])


def test_a_revocation_list_without_certificates() -> None:
    """It would protect nothing."""
    with pytest.raises(ConfigurationError, match="revoked") as caught:
        certificates_of(ZoneSettings(crl="list.pem"))
    assert caught.value.remedy
