"""Clipped sums of per-example gradients, computed by the fastest exact method a model allows.

Batches are Poisson samples and differ in length. A batch is cut into short rows of 4 or 8 examples, each
owned by one pair of run and silo. A step processes as many rows at a time as `train.memory` allows. A trial
on zeros bounds the memory of a row by adding up every tensor it creates.

- The *tape* (`tape.py`) keeps only the error and the input of each example of a linear layer, because the
  norm and the weighted sum of their outer products follow from the two factors. A convolution's gradient is
  computed from both afterwards.
- Layers along a sequence (`tapped.py`) get the gradient of an example as one product over all its steps, and
  a table as the rows that the example looks up, each added up before norms are taken.
- A layer is taped only if nothing else reads its parameters and the tape agrees with autograd on random
  examples (`choose.py`). Other parameters get explicit gradients.
- Examples pass through the module one at a time, by `vmap` over examples inside `vmap` over rows, so they
  cannot mix, whatever the module does. Only a plain sequence of known layers (`sequential.py`) takes a row
  as one batch.
- A gradient that is not finite counts as zero.

**What rounding costs.** The sum that gets noise is whatever the machine computed. Let C be the clip and u =
2^-24. If one example of a batch is replaced by a null example, everything keeps its shape and its place, and
what is computed for the other examples is the same to the bit, since none of it reads that example's values.
So only the sums change:
- Norms. At most 64 squares are added in float32, the rest in float64 (`tape._square`), so a squared norm is
  too small by a share of at most 65 u; for a taped layer, whose norm is a product of two, 130 u. A norm is
  half as wrong: 65 u. The factor, its rounding and its product with a gradient cost 3 u.
- Rows. At most eight clipped gradients are added in float32. The error of each addition is u times the
  partial sum, whose norm is at most k C after k terms, in whatever order: 35 u C in all, and 8 u C for the
  products. With and without the example: 86 u C.
- Up to 5,000 rows are added in float64: 16 x 5,000^2 x 2^-53 C, less than u C. Multiplier and clip are
  float32 numbers: 2 u.
- Persons. The mean gradient over a person's rows is written down, layer by layer, before its norm is taken.
  Whatever it was rounded to is what is clipped, so it costs nothing more, even if rows cancel each other out.

Together 157 u < 9.4e-6, which `clipping.ROUNDING` pays for: gradients are clipped to C / (1 + 1e-5).

**Not drawn, or null.** Amplification by sampling also compares the batch with the one without the example.
In a metered training a null example and none give the same bits: an example's slot does not depend on
who else was drawn (`coterie.cohort.sampling`). A simulation lets later examples move up. Their row sums are
then rounded in other groups, and torch may round a gradient in another way at another place.
"""
