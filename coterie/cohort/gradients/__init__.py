"""Clipped sums of per-example gradients, computed by the fastest exact method a model allows.

Batches are Poisson samples and differ in length. A batch is cut into short rows of 4 or 8 examples, each
owned by one pair of run and silo. A step processes as many rows at a time as `train.memory` allows. A trial
on zeros bounds the memory of a row by adding up every tensor it creates.

- The *tape* (`tape.py`) keeps only the error and the input of each example of a linear layer, because the
  norm and the weighted sum of their outer products follow from the two factors. A convolution's gradient is
  computed from both afterwards.
- A layer is taped only if nothing else reads its parameters and the tape agrees with autograd on random
  examples (`choose.py`). Other parameters get explicit gradients.
- Examples pass through the module one at a time, by `vmap` over examples inside `vmap` over rows, so they
  cannot mix, whatever the module does. Only a plain sequence of known layers (`sequential.py`) takes a row
  as one batch.
- Sums are float64, because in float32 one example could change how the sum of all the others is rounded.
  Norms are float32, and a share of 1e-5 of the clip pays for their rounding. A gradient that is not finite
  counts as zero.
"""
