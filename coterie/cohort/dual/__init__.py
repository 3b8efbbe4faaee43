"""Dual coordinates: linear models trained through one dual per example.

`Oracle.solve_dual` moves the duals a of a linear model (squared loss, hinge, squared hinge, hinge of each
class against the rest) and returns what the moves add to X a. There are two forms.

**Sampled** (`sampled.py`), certified per example. Each dual moves from the released model and itself alone,
by at most `clip` in d_i x_i; noise is added to sums over Poisson samples. Why is a step a sampled Gaussian,
although the silo keeps its duals? Fix all coins of the other examples, which do not depend on the data.
What the others add then follows from what was released. Example i adds nothing with probability 1 - rate,
whatever happened before; otherwise it adds a vector no longer than the clip, which may depend on its own
hidden coins. A mixture of such vectors is no easier to tell from nothing than the worst of them, since
hockey-stick divergences are jointly convex. So, given everything released before, each step is dominated by
the sampled Gaussian, and dominated steps compose. Two things would break the argument, and both are
refused: reading a sum before it is noised, and taking up duals that moved in the other form.

**In turn** (`sdca.py`), certified per upload. Duals move one after the other and see each other's moves, so
one example may change the whole upload. The upload is clipped as a whole, its sensitivity is twice the clip
under any adjacency, and nothing is sampled. Without privacy this is the plain algorithm (SDCA). A paper's
own noise (`unproven`) is refused as soon as any silo has a budget.

Duality gaps (`gap.py`) read all examples, so results hold them only where no silo has a budget.
"""
