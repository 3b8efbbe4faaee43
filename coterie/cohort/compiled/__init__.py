"""Compiled kernels for training without clipping (no privacy, or the unit 'silo').

Without finite clips no gradient of a single example is needed: the sum of a batch is one product. Sequences
of convolutions, ReLU, tiled pooling and linear layers with cross-entropy go through kernels compiled by
numba, unless they are small: one silo's batch after the other, within a few megabytes, without the
interpreter. In torch, half of such a round is copying. The kernels are used only where they agree with
autograd on made-up examples; labels are checked before, and values that are not finite stay so.
`program.py` translates a module, `walk.py` shares pairs of run and silo out to the cores, `blas.py` finds a
matrix product. Compiling takes about ten seconds, once per installation.
"""
