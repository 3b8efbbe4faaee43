"""Ledgers: what all runs together have spent on a silo's data set.

A ledger is an SQLite file (write-ahead log, extra synchronous) for one data set. A fingerprint of the
source, the silo and its number of examples (training and test) names it, never the content. Rows are only
added, and each holds the hash of the one before. A ledger is built beside its place and linked there, so a
whole one exists or none. `names` says when two names mean the same data set.

**Rows.** `open`, `budget`, `run` (a claim: stages of events, delta, certified epsilon, rounds allowed, the
adversaries who see it, and digests of what its statement will say besides), `reserve`, `commit`, `cancel`
(only where nothing was reserved), and `release` (an abandoned run gives back what it never reserved; see
`release`). `adopt`, `key` and `recover` say who signs, and what was lost.

**Signatures.** Every change ends with a signed head: a sequence number, the hash of the last row, what was
spent and the budgets, the time, and an Ed25519 signature with the silo's key. The hash covers all rows, so
nobody without the key can change, add or drop a row: the file is refused. A signature does not bind the
holder of the key, who can rewrite the file and sign it again, and it says nothing of time: a file that was
cut back to an earlier head, or restored from a backup, is as well signed as it was then.

**Witnesses** catch just that. Whoever keeps the heads (a folder on another disk, another silo, the
coordinator) has seen the largest sequence number and its hash. A ledger that is behind, that has other rows
at that place, that has another id, or that is gone, does not agree, and is neither charged nor made anew. A
change is first committed, then recorded by the witness, and only then relied upon: noise is drawn after
both are durable. So a crash leaves the witness behind at most, never ahead: a ledger that is ahead and
contains the witness's head agrees, and the witness catches up. Two copies that change at the same time
record two heads with one number; the first recorded one wins, and the other copy is refused before it
releases anything. Nothing depends on clocks.

What a witness cannot catch: a ledger and its witness that are set back together (a whole machine; use a
witness elsewhere), and a holder of the key who also controls the witness. A witness that does not know a
ledger which has been changed before is not believed either, so deleting its record is noticed, too.

**Recovery** is the recorded way out. It accepts what is there, or makes a new ledger with the budgets and
the filter of the lost one, and adds a row with the reason, the witness's head, and a charge: all that the
witness knows to be spent and the ledger does not. For an old copy that is the difference, since a ledger is
changed only while its witness agrees; in any other case both count in full. What became of earlier runs is
not known, so none of them can continue, be cancelled, or give rounds back.

**Filters**, chosen when a ledger is made. *basic*: the certified epsilons of runs add up. A run is charged
as planned when it begins, since a run that stopped may have stopped because of its results. *rdp*: the
Renyi divergences of reserved rounds add up at one order, fixed when the ledger is made. *gdp*: runs are
approximately Gaussian, and the squares of mu add up (see `approximate_gaussian`); they are charged as
planned. A claim is certified anew before it is charged.

**Repeated rounds.** Rounds repeated after a crash are charged as releases of their own, delta included.
When and how often people resume may depend on what came out, so the plan's certificate does not cover them.

**Units.** A ledger has a budget in the unit *example*, in the unit *silo*, or in both, and keeps a total
for each unit and adversary. A run of whole silos counts for examples too, never the other way round, and
not by the same number: the unit *silo* is accounted for a silo that is zeroed out (one clip), while an
example that is zeroed out turns its silo's upload into any other one (two clips). So such a run is charged
to examples as replace-one (`as_example` in its row), and must fit into both budgets if both exist. No Renyi
bound is known for drawn silos that are replaced: there the filter *rdp* refuses a run if examples have a
budget.

**Adversaries without protection.** A run of whole silos is charged for what the best-informed adversary sees,
among those that are kept out at all (`MergeEvents.strongest`). An adversary who sees the silo's raw uploads
or models is in the row as `unprotected`, and from then on the total against it is `none`, in both units. So
are all other silos together if the sum is a secure one: they know more than is charged. Runs must still fit
the budget against everyone who is protected, so a raw model that stayed at home opens no way to spend without
end.

**Damage.** A flipped byte is found if it changes anything that is read. Bytes in the unused space of a page
change nothing and are not checked. If a ledger cannot be read any more and there is no backup, remove its
file: recovery then makes it again from what its witness knows.

**Power cuts** may lose, tear and reorder all that was not synced. A change is synced before its witness is
told, and the witness before noise is drawn; so are the names of new files and folders. A ledger that was cut
off at any instant opens again and shows at least what was released. If a disk says that it could not sync,
the change is refused, and what was lost later is noticed by the witness.
"""
