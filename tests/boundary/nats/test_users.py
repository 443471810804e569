"""Who we are to a NATS server: a password, a token, a key or credentials."""

from __future__ import annotations

import re
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ergon_framework.boundary.factstore.nats import NatsFactStore
from ergon_framework.boundary.store_urls import open_fact_store
from ergon_framework.errors import ConfigurationError, ErgonError
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.storage.nats import address_of
from ergon_framework.storage.nats.address import OPTIONS
from ergon_framework.storage.nats.connect import signer_of
from ergon_framework.testing.suites.factstore.under_test import new
from tests.servers.nats import NatsServer
from tests.servers.nats_keys import Realm, new_key

pytestmark = pytest.mark.req("SCALE:url-errors", "SCALE:boundary-nats")
ROOT = Path(__file__).parents[3]
TIMEOUT = 30.0


def opens(url: str) -> bool:
    """Whether a store can be opened there."""
    open_fact_store(url, zone="plant-a").close()
    return True


def refusal(url: str) -> ErgonError:
    """What is said when it cannot."""
    with pytest.raises(ConfigurationError, match="does not let this user in") as caught:
        opens(url)
    return caught.value


@pytest.mark.slow
def test_a_password(own_nats: NatsServer) -> None:
    """Special characters are written as in any URL, and no error shows it."""
    own_nats.configure(more='authorization { user: ergon, password: "r@ght/:" }')
    own_nats.start()
    assert opens(own_nats.url(user="ergon:r%40ght%2F%3A"))
    for user in ("", "ergon:wr0ng", "other:r%40ght%2F%3A", "wr0ng"):
        told = refusal(own_nats.url(user=user))
        assert "password" in (told.remedy or "")
        assert "wr0ng" not in f"{told} {told.remedy}"


@pytest.mark.slow
def test_a_token(own_nats: NatsServer) -> None:
    """It stands where a user would, without a password."""
    own_nats.configure(more='authorization { token: "s3cret" }')
    own_nats.start()
    assert opens(own_nats.url(user="s3cret"))
    assert "token" in (refusal(own_nats.url(user="wr0ng")).remedy or "")
    assert "nkey" in (refusal(own_nats.url()).remedy or "")


@pytest.mark.slow
def test_a_key(own_nats: NatsServer, tmp_path: Path) -> None:
    """The server knows its public half; the seed is in a file."""
    key = new_key("U")
    own_nats.configure(more=f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}")
    own_nats.start()
    (tmp_path / "seed").write_text(f"{key.seed}\n")
    (tmp_path / "other").write_text(new_key("U").seed)
    assert opens(own_nats.url(options=f"?nkey={tmp_path / 'seed'}"))
    told = refusal(own_nats.url(options=f"?nkey={tmp_path / 'other'}"))
    assert "nkey" in (told.remedy or "")


@pytest.mark.slow
def test_credentials(own_nats: NatsServer, tmp_path: Path) -> None:
    """A user whom an account of the server has signed; others, and one of yesterday, are not."""
    realm = Realm()
    own_nats.configure(more=realm.config)
    own_nats.start()
    good, other, old = (tmp_path / name for name in ("good.creds", "other.creds", "old.creds"))
    assert opens(own_nats.url(options=f"?creds={realm.creds(good)}"))
    told = refusal(own_nats.url(options=f"?creds={Realm().creds(other)}"))
    assert "creds" in (told.remedy or "")
    told = refusal(own_nats.url(options=f"?creds={realm.creds(old, exp=int(time.time()) - 60)}"))
    assert "expired" in told.message
    assert "new credentials" in (told.remedy or "")


@pytest.mark.slow
def test_credentials_are_read_anew(own_nats: NatsServer, tmp_path: Path) -> None:
    """Those that were renewed count from the next connection on."""
    realm = Realm()
    own_nats.configure(more=realm.config)
    own_nats.start()
    file = realm.creds(tmp_path / "user.creds")
    with closing(open_fact_store(own_nats.url(options=f"?creds={file}"), zone="plant-a")) as store:
        file.unlink()
        own_nats.stop()
        own_nats.start()
        with pytest.raises(ErgonError):
            store.logs()
        realm.creds(file)
        assert store.logs()


def test_a_seed_is_what_its_checksum_says(tmp_path: Path) -> None:
    """The key of a seed is that of whoever made it; a letter that is wrong is noticed."""
    key = new_key("U")
    file = tmp_path / "seed"
    file.write_text(f"# a note\n{key.seed}\n")
    signer = signer_of(None, str(file))
    assert signer is not None
    assert signer.public() == key.public
    assert key.seed not in repr(signer)
    # Of the last letter two bits stand for nothing, so it is the one before it that is wrong.
    letter = "A" if key.seed[-2] != "A" else "B"
    for wrong in (key.seed[:-2] + letter + key.seed[-1], key.seed[:-8]):
        file.write_text(wrong)
        with pytest.raises(ConfigurationError, match="damaged") as caught:
            signer_of(None, str(file))
        assert wrong not in f"{caught.value}"


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"  # of base 32


@given(place=st.integers(0, 57), letter=st.sampled_from(_LETTERS))
@settings(max_examples=200, deadline=None)
def test_no_seed_with_another_letter_is_taken(
    place: int, letter: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whichever letter is wrong, nobody signs with a key that is not the user's."""
    key = new_key("U")
    wrong = key.seed[:place] + letter + key.seed[place + 1 :]
    file = tmp_path_factory.getbasetemp() / "fuzzed-seed"
    file.write_text(wrong)
    # Two bits of the last letter stand for nothing: four letters there mean the same seed.
    if _bits(wrong)[:288] == _bits(key.seed)[:288]:
        signer = signer_of(None, str(file))
        assert signer is not None
        assert signer.public() == key.public
        return
    with pytest.raises(ConfigurationError):
        signer_of(None, str(file))


def _bits(seed: str) -> str:
    return "".join(f"{_LETTERS.index(letter):05b}" for letter in seed)


def test_files_that_do_not_help(tmp_path: Path) -> None:
    """Missing, empty, not for a user, or not a text: each is told, by the option."""
    empty, account, data = tmp_path / "empty", tmp_path / "account", tmp_path / "data"
    empty.write_text("")
    account.write_text(new_key("A").seed)
    data.write_bytes(b"\xff\xfe")
    for file, words in (
        (tmp_path / "missing", "cannot be read"),
        (empty, "has no"),
        (account, "has no"),
        (data, "cannot be read"),
    ):
        for files in ((str(file), None), (None, str(file))):
            with pytest.raises(ConfigurationError, match=words) as caught:
                signer_of(*files)
            assert ("creds" if files[0] else "nkey") in caught.value.message
            assert caught.value.remedy


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nats://me:secret@host?creds=file", "more than one way"),
        ("nats://token@host?nkey=file", "more than one way"),
        ("nats://host?nkey=file&creds=file", "more than one way"),
        ("nats://host?creds=", "is empty"),
        ("nats://host?tls_cert=file", "without its key"),
        ("nats://host?tls_key=file", "without its key"),
        ("nats://host?tls=perhaps", "yes or no"),
        ("tls://host?tls=no", "says tls=no"),
        ("nats://host?tls_ca=file&tls=no", "says tls=no"),
        ("tls://host?tls_hosts=file", "takes no option"),
    ],
)
def test_what_contradicts_itself_is_refused(url: str, words: str) -> None:
    """Before anything is opened, and without a secret in the error."""
    with pytest.raises(ConfigurationError, match=words) as caught:
        address_of(url)
    assert caught.value.remedy
    assert "secret" not in f"{caught.value}"


def test_files_for_tls_ask_for_it() -> None:
    """A URL that names the authority means TLS, whatever its scheme."""
    for url in ("tls://host", "TLS://host", "nats://host?tls_ca=file", "nats://host?tls_first=yes"):
        found = address_of(url)
        assert found.has_tls
        assert found.servers == ("tls://host:4222",)
    assert not address_of("nats://host?tls=no").has_tls


@pytest.mark.slow
def test_what_the_page_says_a_user_needs_is_enough(own_nats: NatsServer) -> None:
    """Facts are appended, served and heard of by a user who may do no more."""
    page = (ROOT / "docs/howto/production/connections.md").read_text(encoding="utf-8")
    [said] = re.findall(r"The user needs.*\Z", page, re.DOTALL)
    named = ", ".join(f'"{each}"' for each in re.findall(r"`([^`]+\.>)`", said))
    allowed = f"permissions: {{ publish: [{named}], subscribe: [{named}] }}"
    own_nats.configure(
        more=f"authorization {{ users: [ {{ user: ergon, password: right, {allowed} }} ] }}"
    )
    own_nats.start()
    url = own_nats.url(user="ergon:right")
    with (
        closing(NatsFactStore(url, zone="plant-a")) as one,
        closing(NatsFactStore(url, zone="plant-a")) as two,
    ):
        woken = threading.Event()
        two.subscribe(woken.set)
        one.create_consumer("c", OUTBOUND)
        one.append(OUTBOUND, [new("a"), new("b")])
        assert woken.wait(TIMEOUT)
        assert len(two.serve("c", 9, 1 << 20).page.facts) == 2
        two.confirm("c", 2)
        assert two.truncate(OUTBOUND, 2) == 2


def test_every_option_is_on_a_page() -> None:
    """What a URL may say is written down."""
    pages = ROOT / "docs/howto/production"
    text = "".join(file.read_text(encoding="utf-8") for file in pages.glob("*.md"))
    for option in OPTIONS:
        assert f"{option}=" in text
