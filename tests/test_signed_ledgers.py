"""Signed ledgers: what is rewritten, cut off or signed by another is refused; old ones are adopted, keys change."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import timedelta

import pytest

import coterie
from coterie.errors import Problem
from coterie.privacy import keys
from coterie.privacy.keys import draw_key, new_key, now, read_key
from coterie.privacy.ledger.custody import Custody
from coterie.privacy.ledger.entries import LedgerEntry, LedgerState
from coterie.privacy.ledger.heads import PURPOSE, sign_head
from coterie.privacy.ledger.ledger import open_ledger, read_ledger
from coterie.privacy.ledger.verify import check_ledger
from coterie.privacy.ledger.witness import FolderWitness, find_witness
from tests.books import WHO, ledger, plan, spent
from tests.helpers import call, refused
from tests.tampering import cut, make_unsigned, rewrite

BUDGET = (100.0, 1e-3)


def opened(folder, keys=None):
    return open_ledger(folder, WHO, BUDGET, custody=Custody.of(keys))


def used(folder, keys=None):
    """A ledger with a run in it, closed."""
    book = opened(folder, keys)
    row = book.reserve(book.claim(plan()).run, 0, 5)
    book.commit(row.seq, "x")
    book.close()
    return book


def test_every_change_ends_with_a_signed_head(tmp_path):
    book = opened(tmp_path)
    assert [head.number for head in book.heads()] == [1]
    claim = book.claim(plan())
    book.reserve(claim.run, 0, 5)
    heads, rows = book.heads(), book.entries()
    assert [head.number for head in heads] == [1, 2, 3]
    assert [head.rows for head in heads] == [2, 3, 4]
    key = read_key(book.path.with_suffix(".key"))
    for head in heads:
        head.check()
        assert (head.key, head.hash) == (key.id, rows[head.rows - 1].hash)
        assert head.facts["public"] == key.public.public
    assert heads[-1].spent["example"]["server"] == spent(book)
    report = check_ledger(book.path)
    assert (report.sequence, report.key, report.witnessed, report.notes) == (3, key.id, 3, ())


def test_a_change_that_adds_nothing_signs_nothing(tmp_path):
    book = opened(tmp_path)
    assert book.claim_all([]) == []
    with book.change():
        pass
    assert len(book.heads()) == 1
    book.claim(plan())


def raise_budget(rows):
    return [(kind, body | {"epsilon": 1e6} if kind == "budget" else body) for kind, body in rows]


def forget_run(rows):
    return rows[:2]


def forget_last(rows):
    return rows[:-1]


def lower_noise(rows):
    text = json.dumps(rows).replace('"noise": 4.0', '"noise": 9.0')
    return [(kind, body) for kind, body in json.loads(text)]


def add_row(rows):
    return [*rows, ("budget", {**rows[1][1], "epsilon": 1e3, "raised": True, "reason": "mine"})]


@pytest.mark.parametrize("change", [raise_budget, forget_run, forget_last, lower_noise, add_row])
@pytest.mark.parametrize("heads", [True, False])
def test_a_ledger_that_is_rewritten_and_chained_anew_is_refused(tmp_path, change, heads):
    """Before, each of these passed `ledger verify` and accepted new runs."""
    book = used(tmp_path)
    rewrite(book.path, change, heads)
    for reader in (check_ledger, read_ledger, lambda _: opened(tmp_path)):
        with pytest.raises(Problem, match=r"not the last that its key signed|cannot be read: no such table"):
            reader(book.path)


@pytest.mark.parametrize("change", [raise_budget, forget_run, lower_noise])
def test_a_ledger_that_is_signed_anew_with_another_key_is_refused(tmp_path, change):
    """Whoever rewrites the key in the first row and the key's file, too, is betrayed by the witness."""
    book = used(tmp_path)
    thief = draw_key("north")

    def steal(rows):
        (kind, body), *rest = change(rows)
        return [(kind, body | {"key": thief.public.facts()}), *rest]

    known = "has seen other rows than these|it is an old copy"
    for whole, said in ((False, "not the last that its key signed"), (True, known)):
        rewrite(book.path, steal if whole else change)
        sign_anew(book.path, thief)
        with pytest.raises(Problem, match=said):
            check_ledger(book.path)
        if whole:
            book.path.with_suffix(".key").unlink()
            keys._write_key(book.path.with_suffix(".key"), thief, None)
        with pytest.raises(Problem, match=said):
            opened(tmp_path)


def sign_anew(path, key):
    """Sign every row of a ledger that was rewritten, as its thief could."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("delete from heads")
        rows = connection.execute("select * from entries order by seq").fetchall()
        entries = [LedgerEntry(seq, kind, json.loads(text), *rest) for seq, kind, text, *rest in rows]
        for entry in entries[1:]:
            state = LedgerState.of(entries[: entry.seq])
            head = sign_head(key, WHO, entry.seq - 1, entry, state)
            connection.execute("insert into heads values (?, ?, ?)", (entry.seq, head.text, head.signature))
        connection.commit()


def test_a_signature_that_is_changed_is_found(tmp_path):
    book = used(tmp_path)
    with closing(sqlite3.connect(book.path)) as connection:
        connection.execute("drop trigger no_update_of_heads")
        connection.execute("update heads set signature = '00' || substr(signature, 3) where row = 3")
        connection.commit()
    read_ledger(book.path).close()  # whose last head is as it was
    with pytest.raises(Problem, match=r"row 3: the head is damaged, or its signature is wrong"):
        check_ledger(book.path)
    with closing(sqlite3.connect(book.path)) as connection:
        connection.execute("update heads set body = replace(body, 'north', 'south')")
        connection.commit()
    with pytest.raises(Problem, match="row 5: the head is damaged, or its signature is wrong"):
        read_ledger(book.path)


def test_heads_cannot_be_changed_or_deleted_through_sqlite(tmp_path):
    book = opened(tmp_path)
    for statement in ("delete from heads", "update heads set body = '{}'"):
        with pytest.raises(sqlite3.IntegrityError, match="only ever added to"):
            book.connection.execute(statement)


def test_heads_that_do_not_count_or_say_less_than_was_spent_are_found(tmp_path):
    """The holder of the key can sign anything; a check replays it."""
    book = opened(tmp_path)
    book.claim(plan())
    state, rows = book.state(), book.entries()
    key = read_key(book.path.with_suffix(".key"))
    for number, said in ((7, "its head has the number 7, after 1"), (2, "less was spent against server")):
        poor = state.copy()
        if number == 2:
            poor.runs = {}
            poor.sums = {}
        head = sign_head(key, WHO, number, rows[-1], poor)
        with closing(sqlite3.connect(book.path)) as connection:
            connection.execute("drop trigger if exists no_update_of_heads")
            values = (head.text, head.signature)
            connection.execute("update heads set body = ?, signature = ? where row = 3", values)
            connection.commit()
        with pytest.raises(Problem, match=rf"row 3: .*{said}"):
            check_ledger(book.path, FolderWitness(tmp_path / "nobody", make=True))


def test_an_unsigned_ledger_is_refused_until_it_is_adopted(tmp_path, monkeypatch, capsys):
    book = used(tmp_path)
    before = spent(read_ledger(book.path))
    make_unsigned(book.path)
    for file in (book.path.with_suffix(".key"), book.path.with_suffix(".pub"), heads_file()):
        file.unlink()
    for reader in (check_ledger, read_ledger, lambda _: opened(tmp_path)):
        with refused(
            f"whose rows are not signed: check it, then take it over with `coterie ledger adopt {book.path}"
        ):
            reader(book.path)
    code, _, err = call(monkeypatch, capsys, "run", "--help")
    assert code == 0
    code, _, err = call(monkeypatch, capsys, "ledger", "adopt", tmp_path, "--reason", " ")
    assert (code, "--reason: say why" in err) == (2, True)
    code, out, _ = call(monkeypatch, capsys, "ledger", "adopt", tmp_path, "--reason", "new version")
    assert code == 0
    assert "signed from now on; the rows before never were" in out
    report = check_ledger(book.path)
    assert report.notes == ("adopted at row 6: the rows before it were never signed",)
    assert (report.sequence, report.witnessed) == (1, 1)
    again = opened(tmp_path)
    assert spent(again) == before
    again.claim(plan())
    with refused("is signed already: there is nothing to adopt"):
        coterie.adopt_ledgers(tmp_path, "again")
    again.close()
    rewrite(book.path, lambda rows: rows, heads=False)
    with pytest.raises(Problem, match="no such table: heads"):  # stripped of signatures, it is not unsigned
        read_ledger(book.path)


def heads_file():
    return find_witness().folder / f"{WHO.fingerprint}.heads"


def test_an_adoption_that_was_interrupted_can_be_repeated(tmp_path):
    book = used(tmp_path)
    make_unsigned(book.path)
    heads_file().unlink()
    with closing(sqlite3.connect(book.path)) as connection:  # the table is there, the row is not
        connection.execute("create table heads (row integer primary key, body text, signature text)")
    with refused("whose rows are not signed"):
        read_ledger(book.path)
    coterie.adopt_ledgers(tmp_path, "again")
    check_ledger(book.path)


def test_a_signed_ledger_cannot_be_replaced_by_an_unsigned_copy(tmp_path):
    book = used(tmp_path)
    make_unsigned(book.path)
    with refused("knows a signed ledger of 'north'"):
        coterie.adopt_ledgers(tmp_path, "it is old, I say")


def test_ledgers_are_signed_with_the_silos_own_keys(tmp_path, monkeypatch):
    new_key(tmp_path / "keys", "north", passphrase="secret")
    with refused("needs its passphrase"):
        opened(tmp_path / "ledgers", tmp_path / "keys")
    assert not list((tmp_path / "ledgers").iterdir())
    monkeypatch.setenv("COTERIE_PASSPHRASE", "wrong")
    with refused("the passphrase is wrong"):
        opened(tmp_path / "ledgers", tmp_path / "keys")
    monkeypatch.setenv("COTERIE_PASSPHRASE", "secret")
    book = used(tmp_path / "ledgers", tmp_path / "keys")
    assert check_ledger(book.path).key == read_key(tmp_path / "keys" / "north.key").id
    assert [file.suffix for file in (tmp_path / "ledgers").iterdir()] == [".sqlite"]
    with refused("the key of ledger"):
        opened(tmp_path / "ledgers")
    new_key(tmp_path / "others", "north")
    with refused("is signed with key"):
        opened(tmp_path / "ledgers", tmp_path / "others")
    new_key(tmp_path / "south", "south")
    with refused("there is no key of 'north' in"):
        opened(tmp_path / "ledgers", tmp_path / "south")
    with refused("belongs to 'south', not to 'north'"):
        opened(tmp_path / "ledgers", tmp_path / "south" / "south.key")
    with refused("cannot be read: no such file"):
        opened(tmp_path / "ledgers", tmp_path / "nowhere")
    assert check_ledger(book.path).sequence == 4  # none of these left a trace


def later(monkeypatch, days):
    time = now() + timedelta(days=days)
    monkeypatch.setattr(keys, "now", lambda: time)


@pytest.mark.parametrize("vouched", [True, False])
def test_an_expired_key_is_refused_until_another_takes_over(tmp_path, monkeypatch, capsys, vouched):
    new_key(tmp_path / "keys", "north", valid_days=10)
    book = used(tmp_path / "ledgers", tmp_path / "keys")
    running = opened(tmp_path / "ledgers", tmp_path / "keys")
    later(monkeypatch, 11)
    with refused("expired on"):
        opened(tmp_path / "ledgers", tmp_path / "keys")
    with refused("expired on"):
        running.claim(plan())
    assert check_ledger(book.path).sequence == 4  # what was signed in time stays valid
    new_key(tmp_path / "new", "north")
    asked = ["ledger", "rekey", tmp_path / "ledgers", "--reason", "expired", "--keys", tmp_path / "new"]
    old = ["--old", tmp_path / "keys"] if vouched else ["--old-key-lost"]
    code, _, err = call(monkeypatch, capsys, *asked)
    assert (code, "say where it is (--old), or that it is lost (--old-key-lost" in err) == (2, True)
    assert check_ledger(book.path).sequence == 4
    code, out, err = call(monkeypatch, capsys, *asked, *old)
    assert code == 0, err
    report = check_ledger(book.path)
    assert report.key == read_key(tmp_path / "new" / "north.key").id
    assert report.notes == (() if vouched else ("a new key at row 6, for which the old one does not vouch",))
    assert ("does not vouch" in out) is not vouched
    again = opened(tmp_path / "ledgers", tmp_path / "new")
    again.claim(plan())
    check_ledger(book.path)
    with refused("already"):
        coterie.rekey_ledgers(tmp_path / "ledgers", "again", tmp_path / "new")
    with refused("does not have the key that signed"):
        new_key(tmp_path / "third", "north")
        coterie.rekey_ledgers(tmp_path / "ledgers", "again", tmp_path / "third", old=tmp_path / "keys")


def test_a_false_vouching_is_found(tmp_path):
    book = used(tmp_path)
    new_key(tmp_path / "new", "north")
    coterie.rekey_ledgers(tmp_path, "tidy", tmp_path / "new")
    key = read_key(tmp_path / "new" / "north.key")

    def pretend(rows):
        *rest, (kind, body) = rows
        return [*rest, (kind, body | {"endorsed": "00" * 64})]

    rewrite(book.path, pretend)
    sign_last(book.path, key)
    with pytest.raises(Problem, match="row 6: the key before it did not sign that it was replaced"):
        check_ledger(book.path, FolderWitness(tmp_path / "nobody", make=True))


def sign_last(path, key):
    """Sign the last row of a ledger that was rewritten with its own key."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("drop trigger if exists no_update_of_heads")
        row, text = connection.execute("select row, body from heads order by row desc").fetchone()
        (own,) = connection.execute("select hash from entries where seq = ?", (row,)).fetchone()
        text = json.dumps(json.loads(text) | {"hash": own})
        values = (text, key.sign(PURPOSE, text), row)
        connection.execute("update heads set body = ?, signature = ? where row = ?", values)
        connection.commit()


def test_a_key_that_others_can_read_is_refused(tmp_path):
    book = used(tmp_path)
    book.path.with_suffix(".key").chmod(0o644)
    with refused("can be read by others"):
        opened(tmp_path)
    book.path.with_suffix(".key").unlink()
    with refused("is missing: restore"):
        opened(tmp_path)
    check_ledger(book.path)  # who only reads needs no key


def test_a_clock_that_jumps_changes_nothing_but_what_is_said_of_the_time(tmp_path, monkeypatch):
    """Rows are ordered by their numbers: a clock that is set back neither hides nor breaks anything."""
    book = ledger(tmp_path)
    start = now() + timedelta(days=1)
    for days in (0, 4000, -0.5, 300):
        moment = start + timedelta(days=days)
        monkeypatch.setattr("coterie.privacy.ledger.heads.now", lambda moment=moment: moment)
        monkeypatch.setattr("coterie.privacy.ledger.entries.time.time", moment.timestamp)
        book.reserve(book.claim(plan()).run, 0, 10)
    assert check_ledger(book.path).sequence == 9
    assert spent(ledger(tmp_path))[0] == pytest.approx(4 * plan().epsilon)


def test_a_cut_ledger_is_properly_signed_so_only_its_witness_can_tell(tmp_path):
    book = used(tmp_path)
    cut(book.path, 3)
    assert check_ledger(book.path, FolderWitness(tmp_path / "nobody", make=True)).sequence == 2
    with refused("has seen 4 changes of it"):
        check_ledger(book.path)
    with refused("it is an old copy"):
        opened(tmp_path)
