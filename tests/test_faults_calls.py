"""Disks that fail or are full: what cannot be written is refused, and ledgers show what was released."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from coterie.privacy.ledger.verify import check_ledger
from coterie.privacy.ledger.witness import FolderWitness
from tests.faulty_books import new_disk, refusal_of_book, spend, stopped_by, take_way_out
from tests.faulty_disk import CHANGING, GROWING, KINDS, WAYS, Disk, Fault, cuts, lay_out
from tests.helpers import call
from tests.releases import faulty, meter_at, prepare, refusal_of, sound, train
from tests.sqlite_layer import needs_layer

pytestmark = needs_layer
THOROUGH = os.environ.get("COTERIE_FAULTS") == "all"  # every call: for a night
FAULTS = {
    "EIO": (errno.EIO, KINDS, False),
    "EIO for good": (errno.EIO, KINDS, True),
    "ENOSPC": (errno.ENOSPC, GROWING, False),
    "ENOSPC for good": (errno.ENOSPC, GROWING, True),
}


def releases_on(disk: Disk) -> list:
    return [done.released for done in disk.log if done.released]


@pytest.mark.parametrize("fault", FAULTS)
def test_any_call_may_fail_and_the_ledger_shows_what_was_released(tmp_path, fault):
    """Each call in turn: what fails is refused in a sentence, and the ledger opens again and is whole.

    Some of them try again and then lose power. A disk that could not sync may have lost anything that it was
    given before: then the ledger is refused, with a way out that charges what was released.
    """
    error, kinds, lasting = FAULTS[fault]
    tried, ways = Counter(), Counter()
    for number in itertools.count(0, 4 if lasting and not THOROUGH else 1):
        root = new_disk(tmp_path)
        with faulty(root, Fault(number, error, kinds, lasting)) as disk:
            why = stopped_by(spend, root, disk)
            if not disk.struck:
                break
            tried[why is None] += 1
            disk.fault = None
            again = THOROUGH or number % 25 == 0 or disk.struck[0].startswith("sync")
            if again:
                assert stopped_by(spend, root, disk, b"again") is None, disk.struck
            assert refusal_of_book(root, releases_on(disk)) is None, disk.struck
        *_, last = cuts(disk)
        for how in (WAYS if THOROUGH else WAYS[:1]) if again else ():
            lay_out(last.left(how), tmp_path / "cut")
            with sound(tmp_path / "cut"):
                ways[take_way_out(tmp_path / "cut", releases_on(disk))] += 1
            shutil.rmtree(tmp_path / "cut")
    assert tried[False] > 4 * tried[True]  # only tidying up may fail unnoticed
    assert set(ways) == ({None, "recover", "rekey"} if error == errno.EIO else {None})
    assert ways[None] > ways["recover"] + ways["rekey"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with ledgers of which nothing is spent."""
    place = tmp_path_factory.mktemp("faults") / "prepared"
    prepare(place)
    return place


@pytest.mark.parametrize("fault", FAULTS)
def test_any_call_of_a_training_may_fail_and_it_ends_when_it_is_tried_again(tmp_path, prepared, fault):
    """It is refused in a sentence, or goes on; the ledgers show what was released in both trainings."""
    error, kinds, lasting = FAULTS[fault]
    shutil.copytree(prepared, tmp_path / "counted")
    with faulty(tmp_path / "counted", Fault(10**9, kinds=kinds)) as disk:
        train(tmp_path / "counted")
    calls = range(disk.calls - 20)  # the last calls close the ledgers
    numbers = calls if THOROUGH else sorted(Random(fault).sample(calls, 5))
    refused = 0
    for number in numbers:
        root = tmp_path / "disk"
        shutil.copytree(prepared, root)
        with faulty(root, Fault(number, error, kinds, lasting)) as disk:
            refused += stopped_by(train, root) is not None
            assert disk.struck
            disk.fault = None
            assert refusal_of(root, releases_on(disk)) is None, disk.struck
            train(root)
            assert refusal_of(root, releases_on(disk)) is None, disk.struck
        assert {release.round for release in releases_on(disk)} == {0, 1, 2, 3}
        shutil.rmtree(root)
    assert refused > len(numbers) / 2


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("is_new", [True, False], ids=["no ledger", "ledgers"])
def test_on_a_disk_that_cannot_be_written_no_training_begins(tmp_path, prepared, error, is_new):
    """It is refused before anything is charged or drawn, and leaves nothing behind."""
    root = tmp_path / "disk"
    root.mkdir() if is_new else shutil.copytree(prepared, root)
    before = contents(root)
    with faulty(root, Fault(0, error, CHANGING, lasting=True)) as disk:
        assert stopped_by(train, root) is not None
        assert not releases_on(disk)
        disk.fault = None
        assert contents(root) == before
        meter = meter_at(root)
        assert not any(ledger.state().runs for ledger in meter.ledgers)
        meter.close()
        train(root)


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


CONFIG = """
[data]
silos = 2
[train]
rounds = 2
checkpoint = 1
[privacy]
epsilon = 2
delta = 1e-4
ledger = "ledgers"
[[method]]
name = "fedavg"
"""


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a configuration with a faulty disk; give the exit code, the sentence and the disk."""
    root = tmp_path / "disk"

    def run(fault=None, anew=True):
        if anew:
            shutil.rmtree(root, ignore_errors=True)
            (root / "witness").mkdir(parents=True)
            (root / "c.toml").write_text(CONFIG)
        with faulty(root, fault) as disk:
            code, _, err = call(
                monkeypatch,
                capsys,
                "run",
                root / "c.toml",
                "--out",
                root / "out",
                "--witness",
                root / "witness",
            )
        assert code in (0, 2), err
        assert (err.count("coterie: "), err.count("Traceback")) == (code // 2, 0)
        return code, err.rpartition("coterie: ")[2].strip(), disk

    return run


def test_a_command_whose_disk_fails_ends_with_a_sentence_and_code_2(command):
    """At any call: what was charged by then is within the budget, and the ledgers are whole."""
    _, _, disk = command(Fault(10**9))
    calls, codes = range(40, disk.calls - 20), Counter()
    for number in calls if THOROUGH else sorted(Random(0).sample(calls, 4)):
        code, said, failed = command(Fault(number, errno.EIO if number % 2 else errno.ENOSPC))
        assert "\n" not in said, failed.struck
        codes[code] += 1
        for path in (failed.root / "ledgers").glob("*.sqlite"):
            assert (
                check_ledger(path, FolderWitness(failed.root / "witness")).totals["example"]["server"][0] <= 2
            )
    assert codes[2] > codes[0]


def test_a_result_that_could_not_be_saved_is_saved_by_the_same_command(command):
    """The training is over and charged: nothing is drawn or charged again."""
    code, said, disk = command(Fault(0, errno.ENOSPC, GROWING, lasting=True, where="statements"))
    assert code == 2
    assert said.endswith(
        "no space left on device; free some space, or make it writable, then run the same again"
    )
    assert {release.round for release in releases_on(disk)} == {0, 1}
    code, _, disk = command(anew=False)
    assert code == 0
    assert not releases_on(disk)
