"""Find and open the ledgers of a federation's silos: one for each data set, however it was loaded.

A setting that changes no example must not open another budget. So a run makes ledgers only in a folder
without any, and a person who opens further ones for the same data must say that they belong to another
data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .._threads import in_threads
from ..data.federation import Federation
from ..errors import Problem
from ..privacy.ledger.custody import Custody
from ..privacy.ledger.data_sets import data_sets, holds_ledgers, nothing_spent
from ..privacy.ledger.ledger import Identity, Ledger, check_budget, open_ledger
from ..privacy.ledger.names import data_name

Budgets = Sequence[tuple[float, float] | None]


def open_ledgers(
    folder: Path,
    federation: Federation,
    budgets: Budgets,
    filter: str = "basic",
    unit: str = "example",
    custody: Custody | None = None,
    *,
    another: bool = False,
) -> list[Ledger]:
    """Return the open ledgers of all silos; make those that are missing and have a budget.

    All budgets and keys are checked, and the witness is asked, before any ledger is made. With `another`, new
    ledgers say that the folder had ledgers of the same data. `custody` says which keys sign them and which
    witness keeps their heads.
    """
    found, custody = find_ledgers(folder, federation), custody or Custody()
    custody.check(own.silo for own in federation.identities)
    for k, (known, budget) in enumerate(zip(found, budgets, strict=True)):
        if known is None and budget is not None:
            check_budget(*budget)
            _check_unseen(folder, (federation.identities[k], *federation.former_identities[k]), custody)
    whose = [known or own for known, own in zip(found, federation.identities, strict=True)]
    pairs = zip(whose, budgets, strict=True)
    return in_threads(lambda pair: open_ledger(folder, *pair, unit, filter, custody, another=another), pairs)


def _check_unseen(folder: Path, names: Sequence[Identity], custody: Custody) -> None:
    """Raise `Problem` if the witness has seen a ledger of a data set, under today's or an older name."""
    for who in names:
        if custody.witness.latest(who.fingerprint) is not None:
            open_ledger(folder, who, custody=custody).close()  # says where it was seen, and what to do


def open_for_run(
    folder: Path, federation: Federation, budgets: Budgets, unit: str, custody: Custody | None = None
) -> list[Ledger]:
    """Return the open ledgers of a run, which makes them only in a folder that holds none yet."""
    missing = _missing(folder, federation) if None not in budgets and holds_ledgers(folder) else []
    if missing and not _just_begun(folder, federation):
        raise _refusal(folder, missing[0])
    return open_ledgers(folder, federation, budgets, unit=unit, custody=custody)


def _refusal(folder: Path, who: Identity) -> Problem:
    """Return why a run makes no ledger of a data set, and what to do."""
    beside = [other for _, other in data_sets(folder)]
    if not beside:
        return Problem(
            f"'{folder}' has files of ledgers that are missing or have another name: restore a backup, or use"
            " another folder"
        )
    return Problem(
        f"'{folder}' has no ledger of {_shown(who)}, and a run makes ledgers only in a folder that has none;"
        f" it has one of {_shown(_nearest(beside, who))}: load the data as before or, if these are other"
        " examples, open ledgers for them with `coterie ledger open` (open_ledgers in Python)"
    )


def check_new(folder: Path, federation: Federation, another: bool) -> None:
    """Raise `Problem` unless ledgers may be made for a federation's silos.

    If the folder has ledgers of the same data, that needs `another`.
    """
    missing = _missing(folder, federation)
    if not missing:
        raise Problem(
            f"there are ledgers already, such as that of '{federation.names[0]}': `coterie ledger show` shows"
            " them, `coterie ledger budget` changes their budget"
        )
    related = [
        who
        for _, who in data_sets(folder)
        if data_name(who.source) == data_name(federation.identities[0].source)
    ]
    if related and not another:
        raise Problem(
            f"'{folder}' has ledgers of this data already, such as {_shown(related[0])}: a new ledger of"
            f" {_shown(missing[0])} is a further budget; if it is for other examples, say so with --another"
            " (another=True in Python)"
        )


def find_ledgers(folder: Path, federation: Federation) -> list[Identity | None]:
    """Return whose ledger in a folder is that of each silo; None where there is none.

    A ledger that an older version made under another name is still the silo's ledger.
    """
    found: list[Identity | None] = []
    for own, former in zip(federation.identities, federation.former_identities, strict=True):
        present = (who for who in (*former, own) if _left_of(folder, who))
        found.append(next(present, None))
    if None not in found:
        return found
    beside = [who for _, who in data_sets(folder)] if folder.is_dir() else []
    for k, known in enumerate(found):
        same = [who for who in beside if known is None and federation.is_ledger_of(who, k)]
        if len(same) > 1:
            raise Problem(
                f"'{folder}' has {len(same)} ledgers of {_shown(federation.identities[k])}, such as"
                f" {same[0].fingerprint}.sqlite and {same[1].fingerprint}.sqlite: keep the one that spent the"
                " most, and move the others to another folder"
            )
        found[k] = same[0] if same else known
    return found


def _left_of(folder: Path, who: Identity) -> bool:
    """Return whether a folder has the ledger of a data set, or the secret of one that is missing."""
    return any((folder / f"{who.fingerprint}.{ending}").exists() for ending in ("sqlite", "secret"))


def _just_begun(folder: Path, federation: Federation) -> bool:
    """Return whether all that a folder has is unspent ledgers of these silos, as a killed run leaves them."""
    found, beside = find_ledgers(folder, federation), data_sets(folder)
    files = len(list(folder.glob("*.sqlite")))
    return len(beside) == files > 0 and all(who in found and nothing_spent(path) for path, who in beside)


def _missing(folder: Path, federation: Federation) -> list[Identity]:
    pairs = zip(find_ledgers(folder, federation), federation.identities, strict=True)
    return [own for known, own in pairs if known is None]


def _nearest(beside: Sequence[Identity], who: Identity) -> Identity:
    """Return the ledger that looks most like that of a data set: of the same data, of the same silo."""

    def likeness(other: Identity) -> tuple[bool, bool]:
        return data_name(other.source) == data_name(who.source), other.silo == who.silo

    return max(beside, key=likeness)


def _shown(who: Identity) -> str:
    return f"'{who.silo}' of {who.source} ({who.size} examples)"
