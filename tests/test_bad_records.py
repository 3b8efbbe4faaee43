"""Keys, dates, witnesses and disks that do not fit: one sentence, exit code 2, nothing half-written or trained."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

import coterie
from coterie.errors import Problem
from coterie.privacy import keys
from coterie.privacy.keys import new_key, now, stamp
from coterie.privacy.ledger.place import ledger_rows
from coterie.privacy.statement.build import text_of
from tests.books import key_in, signed_anew
from tests.disks import limited_files, read_only, small_disk
from tests.helpers import call

CONFIG = """
[data]
silos = 2
[train]
rounds = 3
checkpoint = 1
[privacy]
epsilon = 2
delta = 1e-4
[[method]]
name = "fedavg"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a configuration."""
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(CONFIG)
    return tmp_path


def opened(*more):
    """Make ledgers for the configuration, which leave room for several runs."""
    federation = coterie.load("digits", silos=2)
    coterie.open_ledgers("kept", federation, 9.0, 1e-2, **dict(more))


def files_in(*places):
    """Return the bytes of all files below some places, hidden ones too; shared memory of SQLite aside."""
    found = (path for place in places for path in Path(place).rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in found if not path.name.endswith(("-shm", "-wal"))}


def refused_run(monkeypatch, capsys, said, *more, out="out"):
    """Expect that a run ends with one sentence and exit code 2."""
    code, _, err = call(monkeypatch, capsys, "run", "c.toml", "--out", out, *more)
    sentences = [line for line in err.splitlines() if line.startswith("coterie: ")]
    assert (code, len(sentences)) == (2, 1), err
    assert said in sentences[0]
    assert err.rstrip().splitlines()[-1] == sentences[0], "nothing follows the sentence"


# --- keys and dates


def keys_of_others():
    for silo in ("silo-0", "silo-1"):
        new_key("bad", silo)
    return "is signed with key"


def keys_of_another_silo():
    new_key("bad", "silo-0")
    new_key("bad", "silo-7")
    return "there is no key of 'silo-1' in"


def one_key_for_another_silo():
    new_key("bad/only.key", "silo-1")
    Path("bad/only.key").rename("bad.key")
    return "belongs to 'silo-1', not to 'silo-0': use the key of 'silo-0'"


def expired_keys(days=-30.0):
    past = now() + timedelta(days=days)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "now", lambda: past)
        for silo in ("silo-0", "silo-1"):
            new_key("bad", silo, valid_days=10)
    return "expired on"


def keys_from_the_future():
    expired_keys(days=3.0)
    return "which is after"


def locked_keys():
    for silo in ("silo-0", "silo-1"):
        new_key("bad", silo, passphrase="secret")
    return "needs its passphrase"


def public_keys_only():
    for silo in ("silo-0", "silo-1"):
        new_key("bad", silo)
        Path(f"bad/{silo}.key").unlink()
    return "cannot be read: no such file"


def keys_that_others_can_read():
    for silo in ("silo-0", "silo-1"):
        new_key("bad", silo)
        Path(f"bad/{silo}.key").chmod(0o644)
    return "can be read by others"


def damaged_keys():
    for silo in ("silo-0", "silo-1"):
        new_key("bad", silo)
        text = Path(f"bad/{silo}.key").read_text()
        Path(f"bad/{silo}.key").write_text(text.replace(f'"{silo}"', '"silo-5"'))
    return "the facts of this key were changed"


BAD_KEYS = [
    keys_of_others,
    keys_of_another_silo,
    one_key_for_another_silo,
    expired_keys,
    keys_from_the_future,
    locked_keys,
    public_keys_only,
    keys_that_others_can_read,
    damaged_keys,
]


@pytest.mark.parametrize("bad", BAD_KEYS)
def test_a_key_that_does_not_fit_stops_a_run_before_anything_happens(
    folder, monkeypatch, capsys, witness, bad
):
    opened()
    said = bad()
    place = "bad.key" if Path("bad.key").exists() else "bad"
    before = files_in("kept", witness)
    refused_run(monkeypatch, capsys, said, "--ledger", "kept", "--keys", place)
    assert not Path("out").exists()
    assert files_in("kept", witness) == before


@pytest.mark.parametrize("bad", [bad for bad in BAD_KEYS if bad is not keys_of_others])
def test_a_key_that_does_not_fit_makes_no_ledger(folder, monkeypatch, capsys, witness, bad):
    said = bad()
    place = "bad.key" if Path("bad.key").exists() else "bad"
    refused_run(monkeypatch, capsys, said, "--ledger", "kept", "--keys", place)
    asked = ("ledger", "open", "c.toml", "--ledger", "kept", "--epsilon", 9, "--delta", 1e-2, "--keys", place)
    code, _, err = call(monkeypatch, capsys, *asked)
    assert (code, err.count("\n"), said in err) == (2, 1, True)
    assert not files_in("kept", witness)


def statement_of(folder, monkeypatch, capsys):
    """Train a metered run and return one of its statements with the key that signed it."""
    assert call(monkeypatch, capsys, "run", "c.toml", "--ledger", "kept", "--out", "good")[0] == 0
    content = json.loads(Path("good/statements/fedavg/silo-0.json").read_text())
    return content, key_in(Path("kept"), content)


def test_statements_with_wrong_dates_keys_or_schemas_are_refused_in_one_sentence(folder, monkeypatch, capsys):
    content, key = statement_of(folder, monkeypatch, capsys)
    other = keys.draw_key("silo-0")
    new_key("bad", "silo-0")
    future, past = (stamp(now() + timedelta(days=days)) for days in (2, -9000))
    cases = [
        (signed_anew(content | {"time": future}, key), (), "statement: time: it is dated"),
        (signed_anew(content | {"time": past}, key), (), "on the date of the statement, key"),
        (signed_anew(content, other), (), "statement: signature: it was not made with key"),
        (signed_anew(content | {"issuer": other.public.facts()}, other), ("--ledger", "kept"), "issuer"),
        (content, ("--key", "bad/silo-0.pub"), "statement: issuer: it was signed with key"),
        (content, ("--at", "2020-01-01"), "statement: time: it is dated"),
        (content, ("--ledger", "kept", "--witness", "gone"), "the witness 'gone' cannot be reached"),
        (content | {"schema": "coterie-statement/4"}, (), "got 'coterie-statement/4': statements before"),
        (content | {"schema": "coterie-statement/1"}, (), "expected the schema coterie-statement/5"),
        (content | {"schema": 5}, (), "expected the schema coterie-statement/5, got 5"),
        (content | {"schema": None}, (), "expected the schema coterie-statement/5, got None"),
    ]
    for number, (forged, more, said) in enumerate(cases):
        file = Path(f"{number}.json")
        file.write_text(text_of(forged))
        code, out, err = call(monkeypatch, capsys, "statement", "verify", file, *more)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert said in err


# --- witnesses


@pytest.mark.parametrize("existing", [True, False], ids=["existing ledgers", "no ledgers"])
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("gone", "gone' cannot be reached: there is no such folder; mount it, or create it"),
        ("c.toml", "c.toml' cannot be reached: there is no such folder; mount it, or create it"),
    ],
)
def test_a_witness_that_cannot_be_reached_stops_a_run(
    folder, monkeypatch, capsys, witness, place, said, existing
):
    if existing:
        opened()
    before = files_in("kept", witness)
    refused_run(monkeypatch, capsys, said, "--ledger", "kept", "--witness", place)
    assert not Path("out").exists()
    assert files_in("kept", witness) == before
    code, _, err = call(monkeypatch, capsys, "ledger", "open", "c.toml", "--ledger", "new", "--epsilon", 9,
                        "--delta", 1e-2, "--witness", place)  # fmt: skip
    assert (code, err.count("\n"), said in err) == (2, 1, True)
    assert not files_in("new")


# --- disks that cannot be written


def test_ledgers_on_a_disk_that_cannot_be_written(folder, monkeypatch, capsys, witness):
    opened()
    before = files_in("kept", witness)
    with read_only(folder / "kept"):
        refused_run(monkeypatch, capsys, "cannot be written", "--ledger", "kept")
        code, _, err = call(monkeypatch, capsys, "ledger", "budget", "kept", "--epsilon", 5, "--delta", 1e-2)
        assert (code, err.count("\n"), "cannot be written" in err) == (2, 1, True)
        assert call(monkeypatch, capsys, "ledger", "verify", "kept")[0] == 0  # reading needs no writing
    assert not Path("out").exists()
    assert files_in("kept", witness) == before


@pytest.mark.parametrize("place", ["kept", "witness", "parent of out", "out"])
def test_new_ledgers_or_results_on_a_disk_that_cannot_be_written(folder, monkeypatch, capsys, witness, place):
    out = "out" if place in ("kept", "witness") else "disk/out"
    where = {"kept": folder / "kept", "witness": witness, "parent of out": folder / "disk"}.get(place)
    where = where or folder / out
    where.mkdir(parents=True, exist_ok=True)
    with read_only(where):
        refused_run(monkeypatch, capsys, "cannot ", "--ledger", "kept", out=out)
    assert not files_in(*(each for each in ("kept", witness, out) if Path(each).exists()))


def test_keys_on_a_disk_that_cannot_be_written(folder, monkeypatch, capsys):
    Path("keys").mkdir()
    with read_only(folder / "keys"):
        code, _, err = call(monkeypatch, capsys, "keys", "new", "keys", "--silo", "north")
    assert (code, err.count("\n"), "cannot be written" in err) == (2, 1, True)
    assert not files_in("keys")


def test_a_key_is_two_files_or_none(folder, monkeypatch, capsys):
    with limited_files(400):  # the private file is longer, the public one is not
        code, _, err = call(monkeypatch, capsys, "keys", "new", "keys", "--silo", "north")
    assert (code, err.count("\n"), "cannot be written: file too large" in err) == (2, 1, True)
    assert not files_in("keys")
    real = keys._write_public
    monkeypatch.setattr(keys, "_write_public", full)
    code, _, err = call(monkeypatch, capsys, "keys", "new", "keys", "--silo", "north")
    assert (code, files_in("keys")) == (2, {})
    monkeypatch.setattr(keys, "_write_public", real)
    assert call(monkeypatch, capsys, "keys", "new", "keys", "--silo", "north")[0] == 0


def full(*_arguments):
    raise Problem("key 'keys/north.pub' cannot be written: no space left on device")


# --- full disks


def test_new_ledgers_under_a_quota_leave_nothing_but_whole_keys(folder, monkeypatch, capsys, witness):
    """Before, parts of ledgers stayed behind, and the sentence named a hidden file."""
    with limited_files(3000):
        refused_run(
            monkeypatch, capsys, "cannot be written: disk I/O error; nothing is trained", "--ledger", "kept"
        )
    left = {Path(name).suffix for name in files_in("kept")}
    assert left <= {".key", ".pub"}
    assert not any(path.name.startswith(".") for path in Path("kept").iterdir())
    assert not Path("out").exists()
    assert not files_in(witness)
    assert call(monkeypatch, capsys, "run", "c.toml", "--ledger", "kept", "--out", "out")[0] == 0
    assert call(monkeypatch, capsys, "ledger", "verify", "kept")[0] == 0


def test_a_sentence_names_the_ledger_and_not_a_file_that_is_gone(folder, monkeypatch, capsys):
    with limited_files(3000):
        code, _, err = call(monkeypatch, capsys, "run", "c.toml", "--ledger", "kept", "--out", "out")
    assert (code, "ledger '" in err, "/." in err) == (2, True, False)


def test_charged_ledgers_under_a_quota(folder, monkeypatch, capsys, witness):
    opened()
    before = _rows()
    with limited_files(3000):
        refused_run(monkeypatch, capsys, "cannot be written", "--ledger", "kept")
    assert not Path("out").exists()
    assert _rows() == before
    assert call(monkeypatch, capsys, "run", "c.toml", "--ledger", "kept", "--out", "out")[0] == 0


def _rows():
    found = {}
    for row in ledger_rows("kept"):
        found.setdefault(row["ledger"], []).append(row["kind"])
    return found


BIG = ("--set", "model.name=mlp", "--set", "model.hidden=2000")


def test_a_checkpoint_that_does_not_fit_takes_the_claim_back(folder, monkeypatch, capsys):
    """Before, a run that could not write its first checkpoint stayed charged, although nothing had begun."""
    opened()
    with limited_files(300_000):  # the checkpoint has half a megabyte
        refused_run(monkeypatch, capsys, "cannot write the checkpoint", "--ledger", "kept", *BIG)
    assert not Path("out").exists()
    assert {tuple(rows) for rows in _rows().values()} == {("open", "budget", "run", "cancel")}
    assert all(report.totals["example"]["server"] == (0.0, 0.0) for report in coterie.read_ledgers("kept"))


@pytest.mark.parametrize("kilobytes", [4, 8, 12, 24, 40, 80, 120])
def test_a_result_that_does_not_fit_can_be_finished(folder, monkeypatch, capsys, kilobytes):
    """Before, most of these ended with a traceback, and some left half a file."""
    disk = folder / "disk"
    opened()
    with small_disk(disk, kilobytes) as grow:
        refused_run(monkeypatch, capsys, "no space left on device", "--ledger", "kept", out=disk / "out")
        left = files_in(disk)
        for name, content in left.items():
            assert content, f"{name} is empty"
            assert Path(name).name in KNOWN or not Path(name).name.startswith("."), f"{name} was left behind"
            if name.endswith(".json"):
                json.loads(content)
        grow(20_000)
        assert call(monkeypatch, capsys, "run", "c.toml", "--ledger", "kept", "--out", disk / "out")[0] == 0
        for file in (disk / "out/statements").rglob("*.json"):
            assert coterie.verify(file, "kept").in_ledger
    reports = coterie.read_ledgers("kept")
    repeated = any(Path(name).name == ".checkpoint-0" for name in left) and kilobytes <= 12
    for report in reports:
        assert (report.totals["example"]["server"][0] > 2.0) == repeated  # only rounds that were lost


KNOWN = (".checkpoint-0", ".fingerprint")


def test_ledgers_on_a_disk_that_fills_up_while_training(folder, monkeypatch, capsys):
    """What was reserved stays charged, and the run can be finished when there is room."""
    kept = folder / "kept"
    with small_disk(kept, 160) as grow:
        refused_run(monkeypatch, capsys, "database or disk is full", "--ledger", "kept")
        grow(20_000)
        code, _, err = call(monkeypatch, capsys, "ledger", "verify", "kept")
        assert code == 0, err
        for silo in ("silo-0", "silo-1"):
            coterie.set_budget("kept", 9.0, 1e-2, higher=True, reason=f"for {silo}, rounds are repeated")
        assert call(monkeypatch, capsys, "run", "c.toml", "--ledger", "kept", "--out", "out")[0] == 0
        assert call(monkeypatch, capsys, "ledger", "verify", "kept")[0] == 0


def test_a_witness_on_a_disk_that_is_full(folder, monkeypatch, capsys):
    """Nothing is drawn before the witness has kept the charge, so nothing was released."""
    with small_disk(folder / "seen", 4) as grow:
        refused_run(monkeypatch, capsys, "cannot be written", "--ledger", "kept", "--witness", "seen")
        assert not Path("out").exists()
        grow(20_000)
        done = call(
            monkeypatch, capsys, "run", "c.toml", "--ledger", "kept", "--witness", "seen", "--out", "out"
        )
        assert done[0] == 0, done[2]
        assert call(monkeypatch, capsys, "ledger", "verify", "kept", "--witness", "seen")[0] == 0
