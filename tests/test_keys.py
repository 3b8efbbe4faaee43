"""Keys: made once, for their owner alone, known by a fingerprint, refused in one sentence where they do not fit."""

from __future__ import annotations

import json
import os
import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import coterie
from coterie.privacy import keys
from coterie.privacy.keys import (
    PublicKey,
    draw_key,
    find_key,
    is_signed,
    list_keys,
    new_key,
    own_key,
    read_key,
    read_public_key,
)
from tests.helpers import call, refused


def test_a_key_signs_and_its_public_half_checks(tmp_path):
    public = new_key(tmp_path, "north")
    key = read_key(tmp_path / "north.key")
    assert key.public == public == read_public_key(tmp_path / "north.pub")
    assert len(key.id) == 32
    signature = key.sign("ledger", "text")
    assert is_signed(public.public, "ledger", "text", signature)
    assert not is_signed(public.public, "ledger", "texts", signature)
    assert not is_signed(public.public, "statement", "text", signature)  # for another purpose
    assert not is_signed(draw_key().public.public, "ledger", "text", signature)
    for broken in ("", "zz", signature[:-2], "0" * 128, None):
        assert not is_signed(public.public, "ledger", "text", broken)
    assert repr(key) == f"Key({key.id})"
    assert "north" in repr(public)


def test_only_the_owner_can_read_a_private_file(tmp_path):
    old = os.umask(0)
    try:
        new_key(tmp_path, "north")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "north.key").stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["north.key", "north.pub"]
    for mode in (0o640, 0o604, 0o660):
        (tmp_path / "north.key").chmod(mode)
        with refused("can be read by others: make it yours alone with `chmod 600"):
            read_key(tmp_path / "north.key")


def test_a_passphrase(tmp_path, monkeypatch):
    new_key(tmp_path / "k.key", passphrase="correct horse")
    with refused("needs its passphrase: set COTERIE_PASSPHRASE"):
        read_key(tmp_path / "k.key")
    with refused("the passphrase is wrong"):
        read_key(tmp_path / "k.key", "correct cow")
    monkeypatch.setenv("COTERIE_PASSPHRASE", "correct horse")
    assert read_key(tmp_path / "k.key").public.silo is None
    assert b"correct" not in (tmp_path / "k.key").read_bytes()
    assert read_key(new_plain(tmp_path)).id  # one without is read all the same
    with refused("the passphrase is empty"):
        new_key(tmp_path / "e.key", passphrase="")


def new_plain(tmp_path):
    new_key(tmp_path / "plain.key")
    return tmp_path / "plain.key"


def test_an_existing_file_is_never_replaced(tmp_path):
    new_key(tmp_path, "north")
    before = (tmp_path / "north.key").read_bytes()
    with refused("exists already"):
        new_key(tmp_path, "north")
    (tmp_path / "south.pub").write_text("mine")
    with refused("south.pub' exists already"):
        new_key(tmp_path, "south")
    assert (tmp_path / "north.key").read_bytes() == before
    assert not (tmp_path / "south.key").exists()


def rsa() -> bytes:
    return generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a private key of Coterie"),
        (b"hello\nworld", "is not a private key of Coterie"),
        (b"title\n-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "is not a private key"),
        (b"{}", "is a public key; expected the private .key file"),
        (rsa, "is not an Ed25519 key"),
    ],
)
def test_what_is_no_private_key(tmp_path, content, said):
    path = tmp_path / "x.key"
    path.write_bytes(b"title\n" + content() if callable(content) else content)
    path.chmod(0o600)
    with refused(said):
        read_key(path)


def test_files_that_are_missing_or_of_the_wrong_half(tmp_path):
    new_key(tmp_path, "north")
    with refused("cannot be read: no such file"):
        read_key(tmp_path / "none.key")
    with refused("cannot be read: no such file"):
        read_public_key(tmp_path / "none.pub")
    with refused("is a private key: never hand it on"):
        read_public_key(tmp_path / "north.key")
    with refused("there is no key '"):
        list_keys(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with refused("there is no key in '"):
        list_keys(tmp_path / "empty")


def test_facts_of_a_key_cannot_be_changed(tmp_path):
    new_key(tmp_path, "north", valid_days=3)
    facts = json.loads((tmp_path / "north.pub").read_text())
    for change in ({"silo": "south"}, {"expires": None}, {"made": "2020-01-01T00:00:00Z"}):
        (tmp_path / "n.pub").write_text(json.dumps(facts | change))
        with refused("the facts of this key were changed"):
            read_public_key(tmp_path / "n.pub")
    for wrong in ({"public": 3}, {"public": "ab"}, {"schema": "x"}, {"id": "0" * 32}, {"silo": 1}):
        (tmp_path / "n.pub").write_text(json.dumps(facts | wrong))
        with refused("this is not a public key of Coterie"):
            read_public_key(tmp_path / "n.pub")
    for text in ("", "[]", "null", "no"):
        (tmp_path / "n.pub").write_text(text)
        with refused("this is not a public key of Coterie"):
            read_public_key(tmp_path / "n.pub")
    content = (tmp_path / "north.key").read_bytes()
    title, _, pem = content.partition(b"\n")
    other = draw_key("north").public.facts()
    for line, said in (
        (b"nothing", "does not say whose it is"),
        (title.replace(b"north", b"south"), "facts of this key were changed"),
        (b"Coterie key: " + json.dumps(other).encode(), "its first line is that of another key"),
    ):
        (tmp_path / "north.key").write_bytes(line + b"\n" + pem)
        with refused(said):
            read_key(tmp_path / "north.key")


def test_a_key_is_for_its_silo_and_its_time(tmp_path, monkeypatch):
    public = new_key(tmp_path, "north", valid_days=10)
    public.check("north")
    with refused("belongs to 'north', not to 'south': use the key of 'south'"):
        public.check("south")
    new_key(tmp_path, None)
    read_public_key(tmp_path / "any-silo.pub").check("south")
    made = datetime.fromisoformat(public.made)
    public.check("north", made + timedelta(days=9.9))
    with refused("expired on"):
        public.check("north", made + timedelta(days=10))
    with refused("check the clock"):
        public.check("north", made - timedelta(hours=1))
    monkeypatch.setattr(keys, "now", lambda: made + timedelta(days=11))
    with refused("expired on"):
        find_key(tmp_path, "north")
    for days in (0, -1, float("nan"), 1e9):
        with refused("--valid-days: expected a number of days > 0"):
            new_key(tmp_path / "d", "x", valid_days=days)


def test_the_key_of_a_silo_is_found_in_a_folder(tmp_path):
    one, other = new_key(tmp_path, "north"), new_key(tmp_path / "St. Mary's.key", "St. Mary's")
    assert find_key(tmp_path, "north").public == one
    assert find_key(tmp_path, "St. Mary's").public == other
    with refused("there is no key of 'south' in '"):
        find_key(tmp_path, "south")
    with refused("belongs to 'north', not to 'south'"):
        find_key(tmp_path / "north.key", "south")
    shared = new_key(tmp_path)
    assert find_key(tmp_path, "south").public == shared
    assert find_key(tmp_path, "north").public == one
    (tmp_path / "north.key").unlink()
    with refused("cannot be read: no such file"):
        find_key(tmp_path, "north")


def test_a_key_of_its_own_is_made_on_first_use(tmp_path):
    first = own_key(tmp_path / "a" / "x.key", "north")
    assert own_key(tmp_path / "a" / "x.key", "north").id == first.id
    (tmp_path / "a" / "x.pub").unlink()  # lost: it says nothing that the private file does not
    assert own_key(tmp_path / "a" / "x.key", "north").id == first.id
    assert read_public_key(tmp_path / "a" / "x.pub") == first.public


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with refused("cannot be written"):
        new_key(tmp_path / "file", "north")
    with refused("cannot be written"):
        new_key("/proc/keys-of-nobody", "north")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_times_that_keys_say():
    assert keys.stamp(datetime(2026, 5, 12, tzinfo=UTC)) == "2026-05-12T00:00:00Z"
    assert keys.parse_time("2026-05-12", "x") == datetime(2026, 5, 12, tzinfo=UTC)
    with refused("x: expected a day or a UTC time, such as 2026-05-12 or"):
        keys.parse_time("yesterday", "x")
    key = draw_key("n", 2)
    assert datetime.fromisoformat(key.public.expires) - datetime.fromisoformat(key.public.made) == timedelta(
        2
    )


def test_commands_and_python_make_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(monkeypatch, capsys, "keys", "new", "keys", "--silo", "north", "--valid-days", 30)
    assert code == 0
    public = coterie.read_public_key("keys/north.pub")
    assert f"key {public.id} for 'north' until {public.expires}: keys/north.key" in out
    assert coterie.new_key("keys", "south").silo == "south"
    code, out, _ = call(monkeypatch, capsys, "keys", "show", "keys", "--json")
    listed = json.loads(out)["keys"]
    assert [each["silo"] for each in listed] == ["north", "south"]
    assert PublicKey.from_facts(listed[0], "x") == public
    assert "'south', made" in call(monkeypatch, capsys, "keys", "show", "keys")[1]
    code, _, err = call(monkeypatch, capsys, "keys", "new", "keys", "--silo", "north")
    assert (code, err.count("\n")) == (2, 1)
    assert "exists already" in err
    code, out, _ = call(monkeypatch, capsys, "keys", "new", "any.key", "--json")
    assert (code, json.loads(out)["silo"]) == (0, None)


def test_a_passphrase_is_asked_for_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("COTERIE_PASSPHRASE", raising=False)
    typed = iter(["secret", "other", "secret", "secret"])
    monkeypatch.setattr("getpass.getpass", lambda _: next(typed))
    code, _, err = call(monkeypatch, capsys, "keys", "new", tmp_path / "a.key", "--passphrase")
    assert (code, "the two passphrases differ" in err) == (2, True)
    assert call(monkeypatch, capsys, "keys", "new", tmp_path / "a.key", "--passphrase")[0] == 0
    assert read_key(tmp_path / "a.key", "secret").id
    monkeypatch.setenv("COTERIE_PASSPHRASE", "from the environment")
    assert call(monkeypatch, capsys, "keys", "new", tmp_path / "b.key", "--passphrase")[0] == 0
    assert read_key(tmp_path / "b.key", "from the environment").id


def test_a_private_file_says_whose_it_is_if_its_public_one_is_missing(tmp_path, monkeypatch, capsys):
    """Before, a folder of private files was said to have no key."""
    north = new_key(tmp_path / "swap", "north", passphrase="secret")
    new_key(tmp_path / "swap", "south")
    (tmp_path / "swap" / "north.pub").unlink()
    assert find_key(tmp_path / "swap", "south").public.silo == "south"
    (tmp_path / "swap" / "south.pub").unlink()
    listed = list_keys(tmp_path / "swap")
    assert [(file.name, public.silo) for file, public in listed] == [
        ("north.key", "north"),
        ("south.key", "south"),
    ]
    assert list_keys(tmp_path / "swap" / "north.key") == [(tmp_path / "swap" / "north.key", north)]
    monkeypatch.setenv("COTERIE_PASSPHRASE", "secret")
    assert find_key(tmp_path / "swap", "north").public == north
    out = call(monkeypatch, capsys, "keys", "show", tmp_path / "swap")[1]
    assert f"{north.id}  'north', made" in out
    (tmp_path / "swap" / "stray.key").write_text("nothing")
    with refused("stray.key' is damaged: its first line does not say whose it is"):
        list_keys(tmp_path / "swap")
