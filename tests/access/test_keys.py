"""Keys: both ways to write one, and the file of the hub's pair."""

import contextlib
import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.access import keys
from fabric_protocol.errors import FabricError


def test_both_forms_are_the_same_key() -> None:
    pair = keys.make_pair()
    assert keys.parse_key(pair.public) == pair.public
    link = keys.link_form(pair.public)
    assert len(link) == 43
    assert keys.parse_key(link) == pair.public
    assert keys.curve_public(pair.secret) == pair.public


@given(st.text(max_size=60) | st.text(alphabet=st.characters(max_codepoint=126), min_size=40, max_size=43))
def test_any_text_is_a_key_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert len(keys.raw_key(keys.parse_key(text))) == 32


@pytest.mark.parametrize("text", ["0" * 40, "A" * 43, "#" * 40, "é" * 40, "-" * 42 + "é", "A" * 42 + "B", ""])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"key|characters"):
        keys.parse_key(text)


def test_a_pair_is_made_once_and_is_private(tmp_path: Path) -> None:
    pair, is_new = keys.open_hub_key(tmp_path)
    path = keys.hub_key_path(tmp_path)
    assert is_new
    assert keys.have_keys(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert keys.open_hub_key(tmp_path) == (pair, False)


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    keys.open_hub_key(tmp_path)
    path = keys.hub_key_path(tmp_path)
    for mode in (0o640, 0o604, 0o644):
        path.chmod(mode)
        with pytest.raises(FabricError, match="other users may read it") as error:
            keys.open_hub_key(tmp_path)
        assert f"chmod 600 {path}" in error.value.hint


def test_a_folder_of_keys_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    for _ in range(2):  # before there are keys, and after
        (tmp_path / "keys").chmod(0o777)
        with pytest.raises(FabricError, match="every user may replace the keys") as error:
            keys.open_hub_key(tmp_path)
        assert error.value.hint == f"chmod 700 {tmp_path}/keys"
        (tmp_path / "keys").chmod(0o700)
        keys.open_hub_key(tmp_path)


def test_a_key_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub without keys lets in every client of the machine."""
    (tmp_path / "keys").mkdir(mode=0o700)
    keys.hub_key_path(tmp_path).symlink_to("missing")
    assert keys.have_keys(tmp_path)
    with pytest.raises(FabricError, match="cannot read the key file"):
        keys.open_hub_key(tmp_path)

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "lstat", refuse)  # the modes of a folder do not hinder root
    monkeypatch.setattr(Path, "lstat", refuse)
    assert keys.have_keys(tmp_path)


def test_a_file_in_place_of_the_folder_of_keys_is_told(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("")
    with pytest.raises(FabricError, match="cannot write the hub's key") as error:
        keys.open_hub_key(tmp_path)
    assert error.value.hint == f"{tmp_path}/keys must be a folder that the user of the hub may write"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("public", "pubic"),
        lambda text: text[:-20],
        lambda text: text.replace('secret = "', 'secret = "x'),
        lambda text: "",
        lambda text: text + "#" * 5000,
        lambda text: "a = " + "[" * 3000,
        lambda text: keys.TEXT.format(public=keys.make_pair().public, secret=keys.make_pair().secret),
    ],
)
def test_a_damaged_key_file_is_refused_and_stays(tmp_path: Path, change: "object") -> None:
    keys.open_hub_key(tmp_path)
    path = keys.hub_key_path(tmp_path)
    text = change(path.read_text())  # type: ignore[operator]
    path.write_text(text)
    with pytest.raises(FabricError, match="is not a key file") as error:
        keys.open_hub_key(tmp_path)
    assert error.value.hint
    assert path.read_text() == text


def test_a_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    os.symlink(tmp_path / "elsewhere", keys.hub_key_path(tmp_path))
    with pytest.raises(FabricError, match="cannot read the key file"):
        keys.open_hub_key(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_draft_of_a_killed_hub_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".file.new").write_text("half")
    keys.replace_private(tmp_path / "file", "whole")
    assert (tmp_path / "file").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
