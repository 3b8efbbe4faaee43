"""Statements with authority: who issued them, when, about what; forged, future or expired ones are refused."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import coterie
from coterie.errors import Problem
from coterie.privacy import keys
from coterie.privacy.accountant import shown as upper
from coterie.privacy.keys import draw_key, new_key, now, read_key, stamp
from coterie.privacy.statement.build import text_of
from coterie.privacy.statement.checklist import checklist
from coterie.privacy.statement.origin import Origin, code_digest, data_facts
from coterie.privacy.statement.verify import verify
from coterie.report.statement_page import page
from tests.books import key_in, signed_anew
from tests.helpers import call, refused
from tests.test_statement import make

CONFIG = """
[data]
silos = 2
[train]
rounds = 2
[privacy]
epsilon = 2
delta = 1e-4
[[method]]
name = "fedavg"
"""
KEY = draw_key("north")
ORIGIN = Origin(
    data_facts("school", None, 1000), {"name": "linear", "parameters": 9}, {"id": "x"}, "0" * 64, ["rows"]
)


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A configuration in a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(CONFIG)
    return Path("c.toml")


def run(monkeypatch, capsys, *more):
    code, _, err = call(monkeypatch, capsys, "run", "c.toml", *more)
    assert code == 0, err


def read(file):
    return json.loads(Path(file).read_text())


def test_a_metered_statement_names_issuer_data_model_run_and_ledger(study, monkeypatch, capsys):
    """Before, it named the ledger's budget of 10 where the run had 2, and nothing of all the rest."""
    opened = ("ledger", "open", study, "--ledger", "kept", "--epsilon", 10, "--delta", 1e-2)
    assert call(monkeypatch, capsys, *opened)[0] == 0
    before = now() - timedelta(seconds=1)
    run(monkeypatch, capsys, "--ledger", "kept", "--out", "out")
    contents = [read(f"out/statements/fedavg/silo-{k}.json") for k in range(2)]
    assert len({content["run"]["id"] for content in contents}) == 1  # all silos state the same run
    content = contents[0]
    key = key_in(Path("kept"), content)
    assert content["issuer"] == key.public.facts()
    assert content["kind"] == "metered"
    assert before <= datetime.fromisoformat(content["time"]) <= now()
    assert content["guarantee"]["budget"] == 2.0
    assert content["ledger"]["budget"] == {"epsilon": 10.0, "delta": 1e-2}
    (report,) = [r for r in coterie.read_ledgers("kept") if r.identity.silo == "silo-0"]
    assert (content["ledger"]["sequence"], content["ledger"]["recovered"]) == (report.sequence, 0)
    federation = coterie.load("digits", silos=2)
    who = federation.identities[0]
    assert content["data"] == {
        "name": "digits", "source": who.source, "fingerprint": who.fingerprint, "rows": who.size,
    }  # fmt: skip
    assert content["model"] == {"name": "linear", "parameters": 650}
    assert (content["run"]["seed"], content["run"]["rounds"]) == (0, 2)
    assert content["digests"]["code"] == code_digest()
    assert len(content["digests"]["configuration"]) == 64
    assert content["stayed_home"] == ["the silo's examples, for training and for tests"]
    shown = page(content)
    for text in (
        key.id,
        content["time"],
        who.fingerprint,
        "650 parameters",
        content["run"]["id"],
        code_digest(),
    ):
        assert text in shown
    assert "The budget of this run is 2. All runs on this data set may spend 10 at delta 0.01." in shown
    spent = f"{upper(content['guarantee']['epsilon'])} at delta {content['guarantee']['delta']:g}"
    assert f"So far they have spent at most {spent}." in shown
    cell = spent.replace("delta", "<span class='whole'>delta") + "</span>"
    assert shown.count(f"<td>{cell}</td><td>{cell}</td>") == 4  # one table: this run, all runs
    other = dict(checklist(content))["Does it include other uses of the same data?"]
    assert other == (
        f"Only those charged to the silo's ledger: together at most {spent}. Uses outside the ledger are not"
        " included."
    )
    run(monkeypatch, capsys, "--ledger", "kept", "--out", "again")
    assert read("again/statements/fedavg/silo-0.json")["run"]["id"] != content["run"]["id"]


def test_scores_are_said_to_be_of_the_kind_of_run_that_they_are_of(study, monkeypatch, capsys):
    """Before, the scores of a metered run were called those of a simulation, wherever they were shown."""
    for more, kind, what in (
        ((), "simulation", "simulation"),
        (("--ledger", "kept"), "metered", "metered run"),
    ):
        code, out, _ = call(monkeypatch, capsys, "run", "c.toml", *more, "--out", kind)
        sentence = f"These are scores of a {what}, without noise."
        assert (code, sentence in " ".join(out.split()), "a simulation" in out) == (0, True, not more)
        assert (read(f"{kind}/result.json")["kind"], read(f"{kind}/result.json")["complete"]) == (kind, True)
        assert read(f"{kind}/result.json")["scores"].startswith(sentence)
        assert sentence in Path(kind, "summary.md").read_text()
    federation, privacy = coterie.load("digits", silos=2), coterie.Privacy(epsilon=2, delta=1e-4)
    for ledger, what in ((None, "simulation"), ("other", "metered run")):
        name = federation if ledger is None else coterie.load("digits", silos=2, seed=1)
        result = coterie.run(name, coterie.FedAvg(), privacy, rounds=2, ledger=ledger)
        assert result.plot().get_suptitle().endswith(f"scores of a {what}")


def test_every_metered_run_has_a_statement(study, monkeypatch, capsys):
    """Each seed spends of the budget; before, only the first seed of each setting was stated."""
    opened = ("ledger", "open", study, "--ledger", "kept", "--epsilon", 100, "--delta", 1e-1)
    assert call(monkeypatch, capsys, *opened)[0] == 0
    run(monkeypatch, capsys, "--set", "train.seeds=[4, 7, 9]", "--ledger", "kept", "--out", "out")
    files = sorted(str(file.relative_to("out/statements")) for file in Path("out/statements").rglob("*.json"))
    folders = ("fedavg", "fedavg/seed-7", "fedavg/seed-9")
    assert files == sorted(f"{folder}/silo-{k}.json" for folder in folders for k in range(2))
    runs = set()
    for file in files:
        content = read(Path("out/statements", file))
        runs.add((content["silo"], content["ledger"]["run"], content["run"]["seed"]))
        found = coterie.verify(Path("out/statements", file), "kept")
        assert found.in_ledger
        assert Path("out/statements", file).with_suffix(".html").is_file()
    assert len(runs) == 6
    assert sorted(Path("out/models").rglob("*.safetensors")) == [
        Path(f"out/models/fedavg/silo-{k}.safetensors") for k in range(2)
    ]
    run(monkeypatch, capsys, "--set", "train.seeds=[4, 7]", "--out", "simulated")
    assert len(list(Path("simulated/statements").rglob("*.json"))) == 2


def test_a_metered_result_in_python_states_every_run(study):
    federation = coterie.load("digits", silos=2)
    privacy = coterie.Privacy(epsilon=2, delta=1e-4)
    coterie.open_ledgers("kept", federation, 100.0, 1e-1)
    result = coterie.run(federation, coterie.FedAvg(), privacy, rounds=2, seeds=2, ledger="kept")
    for number in range(2):
        assert coterie.verify(result.statement("silo-1", number), "kept").in_ledger
    result.save("saved")
    assert len(list(Path("saved/statements").rglob("*.json"))) == 4


def test_a_statement_is_checked_with_the_silos_key(study, monkeypatch, capsys):
    run(monkeypatch, capsys, "--ledger", "kept", "--out", "out")
    file, content = "out/statements/fedavg/silo-0.json", read("out/statements/fedavg/silo-0.json")
    public = Path("kept", f"{content['data']['fingerprint']}.pub")
    code, out, _ = call(monkeypatch, capsys, "statement", "verify", file, "--key", public, "--ledger", "kept")
    assert code == 0
    assert (
        f"a metered run, signed on {content['time']} with key {content['issuer']['id']}, which is the key you"
        " gave" in out
    )
    code, out, _ = call(monkeypatch, capsys, "statement", "verify", file)
    assert (code, "whose key this is was not checked: give --key" in out) == (0, True)
    code, out, _ = call(monkeypatch, capsys, "statement", "verify", file, "--json", "--key", public)
    (facts,) = json.loads(out)
    assert (facts["key_checked"], facts["kind"]) == (True, "metered")
    other = Path("kept", f"{read('out/statements/fedavg/silo-1.json')['data']['fingerprint']}.pub")
    new_key("keys", "silo-0")
    for wrong, said in (
        (other, "statement: issuer: it was signed with key"),
        (Path("keys/silo-0.pub"), "statement: issuer: it was signed with key"),
        (Path("keys/silo-0.key"), "is a private key: never hand it on"),
        (Path("c.toml"), "this is not a public key of Coterie"),
        (Path("none.pub"), "cannot be read: no such file"),
    ):
        code, _, err = call(monkeypatch, capsys, "statement", "verify", file, "--key", wrong)
        assert (code, err.count("\n")) == (2, 1)
        assert said in err


def test_ten_times_the_noise_with_all_numbers_recomputed_is_refused(study, monkeypatch, capsys):
    """Before, such a statement verified: .015 for a true 1.994."""
    run(monkeypatch, capsys, "--ledger", "kept", "--out", "out")
    content = read("out/statements/fedavg/silo-0.json")
    noise = 10 * content["events"][0]["noise"]
    more = make(events=[coterie_event(content["events"][0] | {"noise": noise})], budget=2.0)
    forged = copy.deepcopy(content)
    for key in ("guarantee", "adversaries", "published", "warnings", "events"):
        forged[key] = copy.deepcopy(more[key])
    forged["guarantee"]["delta"] = content["guarantee"]["delta"]
    forged = signed_anew(forged, None)
    with refused("statement: signature: a statement has both an issuer and a signature, or neither"):
        verify(text_of(forged))
    forged["signature"] = content["signature"]
    with refused("statement: signature: it was not made with key"):
        verify(text_of(forged))
    thief = draw_key("silo-0")
    forged = signed_anew(forged | {"issuer": thief.public.facts()}, thief)
    with refused("statement: issuer: it was signed with key"):
        verify(text_of(forged), read_key(Path("kept", f"{content['data']['fingerprint']}.key")).public)
    forged |= {"issuer": None, "time": None, "signature": None}
    with refused("it is missing, and a metered run is always signed"):
        verify(text_of(signed_anew(forged, None)))


def coterie_event(fields):
    from coterie.privacy.events import Event

    return Event(**fields)


def test_a_simulation_is_signed_only_if_keys_are_given(study, monkeypatch, capsys):
    run(monkeypatch, capsys, "--out", "bare")
    content = read("bare/statements/fedavg/silo-0.json")
    assert (content["kind"], content["issuer"], content["time"], content["signature"]) == (
        "simulation",
        *[None] * 3,
    )
    code, out, _ = call(monkeypatch, capsys, "statement", "verify", "bare/statements/fedavg/silo-0.json")
    assert (code, "a simulation, not signed" in out) == (0, True)
    for k in range(2):
        new_key("keys", f"silo-{k}")
    with refused("there is none, because nobody signed this simulation"):
        coterie.verify("bare/statements/fedavg/silo-0.json", key="keys/silo-0.pub")
    run(monkeypatch, capsys, "--keys", "keys", "--out", "signed")
    found = coterie.verify("signed/statements/fedavg/silo-1.json", key="keys/silo-1.pub")
    assert found.signature.endswith("which is the key you gave")
    assert "anyone who knows its seed knows the noise" in page(found.content)
    Path("keys/silo-1.key").unlink()
    code, _, err = call(monkeypatch, capsys, "run", "c.toml", "--keys", "keys", "--out", "third")
    assert (code, Path("third").exists()) == (2, False)
    assert "cannot be read: no such file" in err


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"silo": "silo-1"}, "there is no key of 'silo-0'"),
        ({"silo": "silo-0", "passphrase": "secret"}, "needs its passphrase"),
        ({"silo": "silo-0", "valid_days": 1e-6}, "expired on"),
    ],
)
@pytest.mark.parametrize("ledger", [("--ledger", "kept"), ()])
def test_training_does_not_start_with_a_key_that_does_not_fit(
    study, monkeypatch, capsys, asked, said, ledger
):
    silo = asked.pop("silo")
    new_key("keys", silo, **asked)
    asked["silo"] = silo
    code, _, err = call(monkeypatch, capsys, "run", "c.toml", "--keys", "keys", *ledger, "--out", "out")
    assert (code, err.count("coterie: "), Path("out").exists()) == (2, 1, False)
    assert said in err
    assert not list(Path().glob("kept/*.sqlite"))


def dated(days, key=KEY, **more):
    """A signed simulation whose date is some days from now."""
    content = make(origin=ORIGIN, key=key, **more)
    return text_of(signed_anew(content | {"time": stamp(now() + timedelta(days=days))}, key))


def test_dates_in_the_future_and_of_expired_keys_are_refused(monkeypatch):
    verify(dated(0))
    with refused("statement: time: it is dated"):
        verify(dated(1))
    with refused("statement: issuer: on the date of the statement, key"):
        verify(dated(-1))  # before the key was made
    short = draw_key("north", valid_days=2)
    good = dated(0, short)
    verify(good, short.public)
    with refused("statement: issuer: on the date of the statement, key"):
        verify(dated(3, short), at=now() + timedelta(days=4))
    real = now()
    monkeypatch.setattr("coterie.privacy.statement.origin.now", lambda: real + timedelta(days=5))
    with refused("check it as of that day (--at DATE)"):
        verify(good)
    verify(good, short.public, real)


def test_a_key_cannot_outlive_its_dates_by_signing_others():
    """Before, who took an expired key could let it say that it never expires: only the key itself says when."""
    short = draw_key("north", valid_days=2)
    facts = replace(short.public, expires=None)
    endless = replace(short, public=replace(facts, signature=short.sign(keys.SCHEMA, facts._text())))
    late = dated(3, endless)
    verify(late, at=now() + timedelta(days=4))
    with refused("statement: issuer: on the date of the statement, key"):
        verify(late, short.public, at=now() + timedelta(days=4))


def test_dates_are_checked_as_of_a_day(study, monkeypatch, capsys):
    for k in range(2):
        new_key("keys", f"silo-{k}", valid_days=2)
    run(monkeypatch, capsys, "--keys", "keys", "--out", "out")
    file, real = "out/statements/fedavg/silo-0.json", now()
    monkeypatch.setattr("coterie.privacy.statement.origin.now", lambda: real + timedelta(days=5))
    code, _, err = call(monkeypatch, capsys, "statement", "verify", file, "--key", "keys/silo-0.pub")
    assert (code, "expired on" in err) == (2, True)
    then = stamp(real + timedelta(hours=1))
    asked = ("statement", "verify", file, "--key", "keys/silo-0.pub", "--at")
    assert call(monkeypatch, capsys, *asked, then)[0] == 0
    code, _, err = call(monkeypatch, capsys, *asked, "yesterday")
    assert (code, "--at: expected a day or a UTC time, such as" in err) == (2, True)
    day = stamp(real + timedelta(days=1))[:10]
    assert call(monkeypatch, capsys, *asked, day)[0] == 0
    code, _, err = call(monkeypatch, capsys, *asked, "2020-01-01")
    assert (code, "statement: time: it is dated" in err) == (2, True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"issuer": None}, "both an issuer and a signature"),
        ({"time": None}, "both an issuer and a date"),
        ({"time": "2026-05-12"}, "statement: time"),
        ({"time": "2026-15-12T00:00:00Z"}, "expected a day or a UTC time, such as"),
        ({"signature": "00"}, "statement: signature"),
        ({"signature": "0" * 128}, "it was not made with key"),
        ({"silo": "south"}, "on the date of the statement, key"),
        ({"issuer": draw_key("south").public.facts()}, "it was not made with key"),
        ({"issuer": KEY.public.facts() | {"silo": None}}, "the facts of this key were changed"),
        ({"issuer": KEY.public.facts() | {"public": "0" * 63}}, "statement: issuer.public"),
        ({"kind": "metered"}, "must be 'metered' exactly if"),
        ({"kind": "rumour"}, "statement: kind"),
        ({"data": {}}, r"statement: data.name"),
        ({"digests": {"configuration": "x", "code": "0" * 64}}, "statement: digests.configuration"),
        ({"grid": {"rule": 3}}, "statement: grid.rule"),
        ({"stayed_home": "all"}, "statement: stayed_home"),
        ({"model": {"name": "x", "parameters": -1}}, "statement: model.parameters"),
    ],
)
def test_a_changed_origin_is_refused_and_named(change, said):
    content = make(origin=ORIGIN, key=KEY)
    forged = content | change
    if "signature" not in change:
        forged = signed_anew(forged, KEY)
    with pytest.raises(Problem, match=said):
        verify(text_of(forged))


def test_a_flipped_bit_anywhere_in_a_signed_statement_is_found():
    text = text_of(make(origin=ORIGIN, key=KEY)).encode()
    chance = random.Random(0)
    for place in range(len(text)):
        changed = bytearray(text)
        changed[place] ^= 1 << chance.randrange(7)
        with pytest.raises(Problem, match="statement"):
            verify(changed.decode("utf-8", errors="replace"))


WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numba", "sklearn"):
            raise ImportError(f"{name} must not be imported here")
sys.meta_path.insert(0, Refuse())
from coterie.cli.main import main
sys.argv = ["coterie", *sys.argv[1:]]
main()
"""


def test_verifying_works_without_torch(study, monkeypatch, capsys):
    run(monkeypatch, capsys, "--ledger", "kept", "--out", "out")
    file = "out/statements/fedavg/silo-0.json"
    public = Path("kept", f"{read(file)['data']['fingerprint']}.pub")
    for command in (
        ["statement", "verify", file, "--key", str(public), "--ledger", "kept"],
        ["ledger", "verify", "kept"],
        ["ledger", "budget", "kept", "--epsilon", "1.5", "--delta", "1e-4"],
        ["keys", "new", "keys"],
        ["keys", "show", "kept"],
    ):
        place = {**os.environ, "PYTHONPATH": str(Path(coterie.__file__).parents[1])}
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_TORCH, *command], capture_output=True, text=True, env=place
        )
        assert done.returncode == 0, done.stderr


def test_an_older_statement_is_refused_in_one_sentence(tmp_path):
    content = {key: value for key, value in make().items() if key not in ("issuer", "kind", "signature")}
    (tmp_path / "old.json").write_text(text_of(content | {"schema": "coterie-statement/3"}))
    with refused("got 'coterie-statement/3': statements before version 5 lack facts that this check needs"):
        coterie.verify(tmp_path / "old.json")


def test_a_recovered_ledger_says_so_in_its_statements(study, monkeypatch, capsys):
    opened = ("ledger", "open", study, "--ledger", "kept", "--epsilon", 10, "--delta", 1e-2)
    assert call(monkeypatch, capsys, *opened)[0] == 0
    for path in Path("kept").glob("*.sqlite"):
        path.unlink()
        coterie.recover_ledgers(path, "deleted by mistake")
    run(monkeypatch, capsys, "--ledger", "kept", "--out", "out")
    content = read("out/statements/fedavg/silo-0.json")
    assert content["ledger"]["recovered"] == 1
    assert "recovered 1 time(s) after a loss" in page(content)
    assert coterie.verify(content, "kept").in_ledger


def test_statements_stay_valid_when_the_key_of_their_ledger_changes(study, monkeypatch, capsys):
    run(monkeypatch, capsys, "--ledger", "kept", "--out", "out")
    for k in range(2):
        new_key("keys", f"silo-{k}")
    coterie.rekey_ledgers("kept", "own keys", "keys")
    assert coterie.verify("out/statements/fedavg/silo-0.json", "kept").in_ledger
    content = read("out/statements/fedavg/silo-0.json")
    new = read_key("keys/silo-0.key")
    with refused("statement: issuer: its ledger was signed with key"):
        coterie.verify(
            signed_anew(content | {"issuer": new.public.facts(), "time": stamp(now())}, new), "kept"
        )


def with_more_rows(content):
    content["data"]["rows"] += 1


def with_more_examples(content):
    content["declared_size"] *= 50
    content["doors"][0]["expected_batch"] *= 50


def with_less_budget(content):
    content["guarantee"]["budget"] /= 2


def with_a_choice(content):
    content["ledger"]["chosen"] = content["ledger"]["run"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_more_rows, "statement: data.rows or declared_size: its ledger is that of"),
        (with_more_examples, "statement: data.rows or declared_size: its ledger is that of"),
        (with_less_budget, "statement: guarantee.budget: the ledger charged"),
        (with_a_choice, "statement: ledger.chosen: nothing was chosen"),
    ],
)
def test_the_holder_of_a_key_cannot_change_what_the_ledger_knows(study, monkeypatch, capsys, change, said):
    run(monkeypatch, capsys, "--ledger", "kept", "--out", "out")
    content = read("out/statements/fedavg/silo-0.json")
    key = read_key(Path("kept", f"{content['data']['fingerprint']}.key"))
    assert coterie.verify(signed_anew(content, key), "kept").in_ledger
    change(content)
    with refused(said):
        coterie.verify(signed_anew(content, key), "kept")


def test_the_code_digest_is_of_the_whole_package(monkeypatch):
    assert len(code_digest()) == 64
    assert keys.now  # the module is part of it
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"other")
    assert code_digest.__wrapped__() != code_digest()


def test_a_raised_budget_is_in_the_statement_and_checked_in_its_ledger(study, monkeypatch, capsys):
    opened = ("ledger", "open", "c.toml", "--ledger", "kept", "--epsilon", 5, "--delta", 1e-2)
    assert call(monkeypatch, capsys, *opened)[0] == 0
    higher = ("--epsilon", 9, "--delta", 1e-2, "--raise", "--reason", "board")
    code, _, err = call(monkeypatch, capsys, "ledger", "budget", "kept", *higher)
    assert code == 0, err
    run(monkeypatch, capsys, "--ledger", "kept", "--out", "out")
    file = next(Path("out/statements").rglob("*.json"))
    content = read(file)
    assert content["ledger"]["raised"] == 1
    assert "That budget had been raised 1 time(s)" in page(content)
    assert coterie.verify(content, "kept").not_checked is None
    for told in (0, 2, None):
        forged = copy.deepcopy(content)
        forged["ledger"]["raised"] = told
        forged = signed_anew(forged, key_in(Path("kept"), content))
        verify(text_of(forged))
        with pytest.raises(Problem, match=r"ledger.raised: the budget in its ledger had been raised 1 times"):
            coterie.verify(forged, "kept")


def test_it_is_said_that_no_witness_knows_a_ledger(study, monkeypatch, capsys):
    run(monkeypatch, capsys, "--ledger", "kept", "--out", "out")
    file = next(Path("out/statements").rglob("*.json"))
    Path("empty").mkdir()
    told = "no witness knows the ledger of"
    found = call(monkeypatch, capsys, "statement", "verify", file, "--ledger", "kept", "--witness", "empty")
    assert found[0] == 0
    assert f"not checked: {told}" in " ".join(found[1].split())
    assert told not in call(monkeypatch, capsys, "statement", "verify", file, "--ledger", "kept")[1]
    assert told in coterie.verify(file, "kept", witness="empty").not_checked
