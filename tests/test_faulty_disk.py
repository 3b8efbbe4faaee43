"""The faulty disk itself: it loses what was not synced, keeps what was, and fails when it should."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from tests.faulty_disk import CHANGING, KINDS, Disk, Fault, cuts
from tests.faulty_files import below_python
from tests.sqlite_layer import below_sqlite, layer, needs_layer

pytestmark = needs_layer


def last(disk):
    """Give the disk after all that happened."""
    *_, replay = cuts(disk)
    return replay


def rows_after(disk, how, place):
    """Give how many rows a table has after a power cut."""
    place.mkdir()
    for path, content in last(disk).left(how).items():
        (place / path).write_bytes(content)
    with closing(sqlite3.connect(place / "table.sqlite")) as connection:
        return connection.execute("select count(*) from t").fetchone()[0]


@pytest.fixture
def root(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    return place


@pytest.mark.parametrize(("safety", "kept"), [("full", 3), ("off", 0)])
def test_rows_survive_a_power_cut_only_if_sqlite_syncs_them(root, tmp_path, safety, kept):
    with closing(sqlite3.connect(root / "table.sqlite")) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table t (x)")
    disk = Disk.of(root)
    with below_sqlite(disk):
        connection = sqlite3.connect(root / "table.sqlite", isolation_level=None)
        connection.execute(f"pragma synchronous = {safety}")
        for number in range(3):
            connection.execute("insert into t values (?)", (number,))
        assert rows_after(disk, "nothing", tmp_path / "nothing") == kept
        assert rows_after(disk, "all", tmp_path / "all") == 3
        assert all(rows_after(disk, Random(n), tmp_path / str(n)) >= kept for n in range(9))
        connection.close()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("kind", ["open", "read", "lock", "write", "sync"])
def test_sqlite_is_told_that_its_disk_failed(root, kind, error):
    with closing(sqlite3.connect(root / "table.sqlite")) as connection:
        connection.execute("create table t (x)")
    disk = Disk.of(root, Fault(0, error, (kind,), lasting=True))

    def use():
        with closing(sqlite3.connect(root / "table.sqlite", isolation_level=None)) as connection:
            connection.execute("insert into t values (1)")

    with below_sqlite(disk), pytest.raises(sqlite3.OperationalError, match=r"disk|unable to open"):
        use()
    assert disk.struck[0].startswith(f"{kind} table.sqlite")
    use()  # a file beside the disk, or without one, is as ever


def test_other_files_and_connections_that_outlive_a_disk_are_left_alone(root, tmp_path):
    with below_sqlite(Disk(root, Fault(0, lasting=True, kinds=("write",)))):
        with closing(sqlite3.connect(tmp_path / "beside.sqlite")) as connection:
            connection.execute("create table t (x)")
        outliving = sqlite3.connect(root / "table.sqlite")
        with pytest.raises(sqlite3.OperationalError):
            outliving.execute("create table t (x)")
    outliving.execute("create table t (x)")
    outliving.close()
    assert layer().disk is None


def test_a_file_is_safe_when_it_and_its_folder_are_synced(root):
    disk = Disk.of(root)
    with below_python(disk):
        (root / "in").mkdir()
        path = root / "in" / "file"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(handle, b"content")
        assert last(disk).left("nothing") == {}
        os.fsync(handle)
        os.close(handle)
        assert last(disk).left("nothing") == {}
        sync(root)
        assert last(disk).left("nothing") == {Path("in"): None}
        sync(root / "in")
        assert last(disk).left("nothing")[Path("in/file")] == b"content"
        path.rename(root / "in" / "other")
        (root / "in" / "other").write_text("changed")
        assert last(disk).left("nothing") == {Path("in"): None, Path("in/file"): b"content"}
        assert last(disk).left("all") == {Path("in"): None, Path("in/other"): b"changed"}
        (root / "in" / "other").unlink()
        assert last(disk).left("all") == {Path("in"): None}


def sync(folder):
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def test_a_write_may_be_torn_between_and_within_sectors(root):
    disk = Disk.of(root)
    with below_python(disk):
        (root / "file").write_bytes(b"x" * 1300)
    torn = {how: last(disk).left(how)[Path("file")] for how in ("all", "first", "last", "ends")}
    zeros = {"all": [], "first": [], "last": range(1024), "ends": range(512, 1024)}
    for how, content in torn.items():
        assert [place for place, byte in enumerate(content) if byte == 0] == list(zeros[how])
    assert [len(content) for content in torn.values()] == [1300, 512, 1300, 1300]
    by_chance = {last(disk).left(Random(n)).get(Path("file")) for n in range(200)}
    assert {None, b"", b"x" * 1300, b"x" * 256, b"x" * 768} <= by_chance


def test_what_a_failed_sync_should_have_saved_is_not_saved_by_the_next(root):
    disk = Disk.of(root, Fault(0, kinds=("sync",)))
    with below_python(disk):
        handle = os.open(root / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        sync_and_fail = pytest.raises(OSError, match="Input/output error")
        os.write(handle, b"first")
        with sync_and_fail:
            os.fsync(handle)
        os.write(handle, b"second")
        os.fsync(handle)
        os.close(handle)
        sync(root)
    assert last(disk).left("nothing")[Path("file")] == bytes(5) + b"second"
    assert last(disk).left("all")[Path("file")] == b"firstsecond"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("lock", "truncate")])
def test_python_is_told_that_its_disk_failed(root, kind):
    (root / "old").write_text("old")
    calls = {
        "open": lambda: (root / "old").open(),
        "read": lambda: (root / "old").read_bytes(),
        "write": lambda: (root / "old").write_text("new"),
        "sync": lambda: sync(root),
        "create": lambda: (root / "new").write_text("new"),
        "delete": lambda: (root / "old").unlink(),
        "link": lambda: os.link(root / "old", root / "new"),
        "rename": lambda: (root / "old").rename(root / "new"),
        "mkdir": lambda: (root / "new").mkdir(),
    }
    disk = Disk.of(root, Fault(0, errno.ENOSPC, (kind,)))
    with below_python(disk), pytest.raises(OSError, match="No space left on device"):
        calls[kind]()
    assert disk.struck
    assert not (root / "new").exists()
    assert kind in CHANGING or (root / "old").read_text() == "old"
