"""Compiled kernels for training without clipping (no privacy, or the unit 'silo').

Without finite clips, no gradient of a single example is needed: the sum over a batch is one product.
Sequences of convolutions, ReLU, tiled pooling and linear layers with cross-entropy run in kernels compiled
by numba, unless they are small. The kernels process one silo's batch after the other, within a few megabytes
and without the interpreter; in torch, half of such a round is copying. They are used only if they agree with
autograd on random examples. Labels are checked beforehand, and values that are not finite stay so.

`program.py` translates a module, `walk.py` divides pairs of run and silo among the cores, and `blas.py`
finds a matrix product. Compiling takes about ten seconds, once per installation.
"""
