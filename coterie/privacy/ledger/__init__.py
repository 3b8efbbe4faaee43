"""Ledgers: what all runs together have spent on a silo's data set.

A ledger is an SQLite file (write-ahead log, full synchronous) for one data set. A fingerprint of the
source, the silo and its number of examples (training and test) names it, never the content. Rows are only
added, and each holds the hash of the one before. A ledger is built beside its place and linked there, so a
whole one exists or none. `names` says when two names mean the same data set.

**Rows.** `open`, `budget`, `run` (a claim: stages of events, delta, certified epsilon, rounds allowed, the
adversaries who see it), `reserve`, `commit`, and `cancel` (only where nothing was reserved).

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

**Adversaries without protection.** A run of whole silos is charged for what the best-informed adversary
sees, among those that are kept out at all (`MergeEvents.strongest`). An adversary who sees the silo's raw
uploads or models is in the row as `unprotected`, and from then on the total against it is `none`, in both
units. Runs must still fit the budget against everyone who is protected, so a raw model that stayed at home
opens no way to spend without end.

**Damage.** A flipped byte is found if it changes anything that is read. Bytes in the unused space of a page
change nothing and are not checked.
"""
