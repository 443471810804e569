"""The authority for development."""

from __future__ import annotations

import os
import resource
import stat
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from ergon_framework.boundary.certs import issue, make_ca
from ergon_framework.errors import ConfigurationError

pytestmark = pytest.mark.req("BOUNDARY:security")


def _names(path: Path) -> x509.SubjectAlternativeName:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def test_a_zone_gets_a_certificate_for_both_sides(tmp_path: Path) -> None:
    """It names the zone and the hosts, and is signed by the authority."""
    authority = x509.load_pem_x509_certificate(make_ca(tmp_path)[0].read_bytes())
    path, key = issue(tmp_path, "plant-a", hosts=("node.example", "127.0.0.1", "::1"), days=9)
    assert (path.name, key.name) == ("plant-a.pem", "plant-a.key")
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = _names(path)
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["bsfg://zone/plant-a"]
    assert names.get_values_for_type(x509.DNSName) == ["node.example"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    span = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert span.days == 9


def test_nobody_else_can_put_another_authority_in_its_place(tmp_path: Path) -> None:
    """The folder is made for its owner to write to, whatever the umask."""
    before = os.umask(0)
    try:
        path, _ = make_ca(tmp_path / "certs")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_full_disk_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed write does not say which file it was about."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it would be cut off, and nobody told
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(ConfigurationError) as caught:
            make_ca(tmp_path / "certs")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(caught.value).startswith(f"{tmp_path / 'certs'} cannot be written")
    assert not list((tmp_path / "certs").iterdir())


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    """Nobody else may read a key."""
    for _, key in (make_ca(tmp_path), issue(tmp_path, "a")):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("zone", "name"),
    [
        ("Plant A", "Plant A"),
        ("../../etc/zone", "..%2F..%2Fetc%2Fzone"),
        ("Grüße", "Gr%C3%BC%C3%9Fe"),
        ("z" * 100, "z" * 100),
    ],
)
def test_any_zone_has_a_file(tmp_path: Path, zone: str, name: str) -> None:
    """A zone's name is free, and never leads out of the folder."""
    make_ca(tmp_path / "certs")
    path, _ = issue(tmp_path / "certs", zone)
    assert path == tmp_path / "certs" / f"{name}.pem"
    assert [each.name for each in tmp_path.iterdir()] == ["certs"]


def test_nothing_is_overwritten_unless_forced(tmp_path: Path) -> None:
    """A second attempt leaves the first one's files as they are."""
    paths = [*make_ca(tmp_path), *issue(tmp_path, "a")]
    before = [path.read_bytes() for path in paths]
    with pytest.raises(ConfigurationError, match="is there already"):
        make_ca(tmp_path)
    with pytest.raises(ConfigurationError, match="is there already"):
        issue(tmp_path, "a")
    assert [path.read_bytes() for path in paths] == before
    issue(tmp_path, "a", force=True)
    assert paths[2].read_bytes() != before[2]
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "a.key",
        "a.pem",
        "ca.key",
        "ca.pem",
    ]


def test_a_folder_without_authority_says_how_to_make_one_there(tmp_path: Path) -> None:
    """The command names the folder, and can be pasted."""
    folder = tmp_path / "my certs"
    with pytest.raises(ConfigurationError) as caught:
        issue(folder, "a")
    assert caught.value.remedy.endswith(f"  ergon boundary certs ca --folder '{folder}'")


@pytest.mark.req("BOUNDARY:badinput")
def test_bad_requests_are_refused(tmp_path: Path) -> None:
    """No authority, a broken one, a zone called ca, a folder that is a file."""
    with pytest.raises(ConfigurationError, match="no usable authority"):
        issue(tmp_path, "a")
    make_ca(tmp_path)
    with pytest.raises(ConfigurationError, match="called 'ca'"):
        issue(tmp_path, "ca")
    (tmp_path / "ca.key").write_text("rubbish")
    with pytest.raises(ConfigurationError, match="no usable authority"):
        issue(tmp_path, "a")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        make_ca(file / "below")
