"""Where a project is looked for: the working directory and above, as git looks for its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ergon_framework.app.discovery import FoundProject, find_project, nowhere
from ergon_framework.app.settings import load_settings
from ergon_framework.app.settings.stores import base_of, store_url
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.jobs import JobClient


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory: nothing above it is looked at, whatever the machine has there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def folders(home: Path, *names: str) -> Path:
    """The innermost of folders in each other."""
    place = home.joinpath(*names)
    place.mkdir(parents=True)
    return place


def test_the_nearest_counts(home: Path) -> None:
    """A script's store in a folder of a project is what commands there are about."""
    inner = folders(home, "shop", "scripts", "deep")
    (home / "shop" / "ergon.toml").touch()
    assert find_project(inner) == FoundProject(home / "shop", has_settings=True)
    (home / "shop" / "scripts" / "ergon.db").touch()
    assert find_project(inner) == FoundProject(home / "shop" / "scripts", has_settings=False)
    (home / "shop" / "scripts" / "ergon.toml").touch()
    assert find_project(inner) == FoundProject(home / "shop" / "scripts", has_settings=True)


def test_zones_count_where_nothing_else_is(home: Path) -> None:
    """A script that only publishes has no store; zones beside a named store are part of more."""
    inner = folders(home, "shop", "var", "deep")
    (home / "shop" / "var" / "ergon.zones").mkdir()
    found = find_project(inner)
    assert found == FoundProject(home / "shop" / "var", has_settings=False)
    assert found.found == home / "shop" / "var" / "ergon.zones"
    assert base_of(load_settings(found.place, {})) == home / "shop" / "var"
    (home / "shop" / "ergon.toml").touch()
    assert find_project(inner) == FoundProject(home / "shop", has_settings=True)


def test_nothing_above_home_counts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies there is not of this user's making."""
    inner = folders(home, "users", "ada", "shop")
    (home / "ergon.toml").touch()
    assert find_project(inner) == FoundProject(home, has_settings=True)
    monkeypatch.setenv("HOME", str(home / "users" / "ada"))
    assert find_project(inner) is None
    assert f"in {inner} or above" in nowhere(inner)


def test_a_file_of_another_user_counts_only_where_one_is(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings name code: nobody runs somebody else's by working in a folder below."""
    inner = folders(home, "shared", "mine")
    (home / "shared" / "ergon.toml").touch()
    if os.geteuid() == 0:
        os.chown(home / "shared" / "ergon.toml", 4711, 4711)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert find_project(inner) is None
    assert f"{home / 'shared' / 'ergon.toml'}, which belongs to another user" in nowhere(inner)
    assert find_project(home / "shared") == FoundProject(home / "shared", has_settings=True)


def test_a_folder_stands_for_the_settings_in_it(home: Path) -> None:
    """With a file or without one, paths start there."""
    shop = folders(home, "shop")
    (shop / "ergon.db").touch()
    settings = load_settings(shop, environ={})
    assert (settings.file, base_of(settings)) == (None, shop)
    assert store_url(settings) == f"sqlite:///{shop / 'ergon.db'}"
    (shop / "ergon.toml").write_text('[store]\nurl = "sqlite:///work.db"\n')
    settings = load_settings(shop, environ={})
    assert settings.file == shop / "ergon.toml"
    assert store_url(load_settings(None, environ={"ERGON_CONFIG": str(shop)})) == (
        f"sqlite:///{shop / 'work.db'}"
    )


def test_what_is_no_file_is_told_as_what_it_is(home: Path) -> None:
    """A folder was meant as the store, and is refused as one; a link that leads nowhere is none."""
    inner = folders(home, "shop")
    (inner / "ergon.db").mkdir()
    url = store_url(load_settings(inner, {}))
    with pytest.raises(StoreUnavailableError, match=r"ergon\.db is a folder"):
        JobClient(url)
    (inner / "ergon.db").rmdir()
    (inner / "ergon.db").symlink_to("missing.db")
    assert f"{inner / 'ergon.db'}, which leads nowhere" in nowhere(inner)
