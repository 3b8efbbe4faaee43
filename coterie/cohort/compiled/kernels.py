"""Compiled SGD of plain sequences: one silo's batch after the other, each while it is in the cache.

A stage computes values `[examples, height, width, channels]` from those of the stage before. Its input lies
in a frame of zeros as wide as its padding. `program` defines the fields of a stage and lays out the memory.
Nothing is checked here. All compiled code is in this file, because numba decides by a file's age whether
what it cached on disk is still valid.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

PRODUCT, MEAN, PEAK, TURN = 0, 1, 2, 3
ANY = ir.IntType(8).as_pointer()
# Without "nnan" and "ninf": NaN must stay NaN, or a diverged model could look like a good one.
QUICK = {"contract", "reassoc", "arcp", "nsz"}


class ExampleArrays(NamedTuple):
    """Examples `[silos, longest, features]` and their classes.

    The examples are in `pixels` if they are bytes, else in `numbers`; the other array is empty.
    """

    pixels: np.ndarray
    numbers: np.ndarray
    classes: np.ndarray
    scale: np.float32


class BatchArrays(NamedTuple):
    """The batches of one step: pair k, of `silo[k]`, takes `length[k]` examples, starting at `start[k]`."""

    silo: np.ndarray
    example: np.ndarray
    start: np.ndarray
    length: np.ndarray


class StepArrays(NamedTuple):
    """The `rate` at which pairs step along a sum of gradients.

    If there are targets, `share` is the part of the way to the target that a step also takes.
    """

    rate: np.ndarray
    share: np.ndarray
    target: np.ndarray


def compiled(function: Any) -> Any:
    """Compile a function to run without the interpreter lock; cache it on disk if that is possible."""
    settings: dict[str, Any] = {"nogil": True, "fastmath": QUICK, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **settings)(function)
    except RuntimeError:  # there is no writable folder
        return numba.njit(**settings)(function)


@intrinsic
def call_sgemm(typingctx, address, turned, sizes, scales, a, b, c):  # type: ignore[no-untyped-def]
    """Call the Fortran function at an address; all its arguments are pointers.

    `turned` holds two letters, `sizes` m, n, k and the row lengths of a, b and c, and `scales` two numbers.
    """

    def generate(context, builder, signature, given):  # type: ignore[no-untyped-def]
        def place(argument: int, number: int = 0) -> Any:
            array = context.make_array(signature.args[argument])(context, builder, given[argument])
            return builder.bitcast(builder.gep(array.data, [ir.Constant(ir.IntType(64), number)]), ANY)

        function = builder.inttoptr(given[0], ir.FunctionType(ir.VoidType(), [ANY] * 13).as_pointer())
        letters, (m, n, k, *lengths) = (place(1, 0), place(1, 1)), (place(2, number) for number in range(6))
        first, second, out = (
            (place(matrix), length) for matrix, length in zip((4, 5, 6), lengths, strict=True)
        )
        builder.call(function, [*letters, m, n, k, place(3, 0), *first, *second, place(3, 1), *out])
        return context.get_dummy_value()

    return types.void(address, turned, sizes, scales, a, b, c), generate


@compiled
def multiply(library, a, turn_a, b, turn_b, out, more):  # type: ignore[no-untyped-def]
    """Write the product of two matrices, each optionally transposed, to `out`.

    `more` is 1 to add the product to `out`, 0 to overwrite it.
    """
    # Fortran's matrices are the transposes of ours, so it is told to multiply b by a
    turned = np.array([84 if turn_b else 78, 84 if turn_a else 78], np.uint8)  # T or N
    rows, columns = out.shape
    depth = a.shape[0] if turn_a else a.shape[1]
    # eight bytes each; libraries with 32-bit integers read the first four
    sizes = np.array([columns, rows, depth, b.shape[1], a.shape[1], columns], np.int64)
    scales = np.array([1, more], np.float32)
    call_sgemm(library, turned, sizes, scales, b, a, out)  # type: ignore[call-arg]


@compiled
def framed(stage, scratch, start, n):  # type: ignore[no-untyped-def]
    """Return the memory from `start` on as the input of a stage, including its frame."""
    size = stage.high * stage.broad * stage.channels
    return scratch[start : start + n * size].reshape((n, stage.high, stage.broad, stage.channels))


@compiled
def matrix(scratch, start, rows, columns):  # type: ignore[no-untyped-def]
    """Return a part of the memory as a matrix."""
    return scratch[start : start + rows * columns].reshape((rows, columns))


@compiled
def patches_of(stage, scratch, n):  # type: ignore[no-untyped-def]
    """Return the patches of a stage; those of a linear layer are its input."""
    return matrix(scratch, stage.patches, n * stage.height * stage.width, stage.patch)


@compiled
def cut(stage, scratch, n, back):  # type: ignore[no-untyped-def]
    """Copy the patches of a convolution from its input, or add up their errors where they came from."""
    patches, at = patches_of(stage, scratch, n).reshape(-1), 0
    image = framed(stage, scratch, stage.error if back else stage.value, n).reshape(-1)
    height, width, tall, run = stage.height, stage.width, stage.tall, stage.run
    line = stage.broad * stage.channels
    page, down, right = stage.high * line, stage.down * line, stage.right * stage.channels
    dilation_y, dilation_x, runs = stage.dilation_y * line, stage.dilation_x * stage.channels, stage.runs
    if back:
        image.fill(0)
    for example in range(n):
        for y in range(height):
            for x in range(width):
                for i in range(tall):
                    for j in range(runs):
                        start = example * page + y * down + x * right + i * dilation_y + j * dilation_x
                        # unsigned indices: numba need not check whether they count from the end
                        if back:
                            for k in range(run):
                                image[np.uintp(start + k)] += patches[np.uintp(at + k)]
                        else:
                            for k in range(run):
                                patches[np.uintp(at + k)] = image[np.uintp(start + k)]
                        at += run


@compiled
def pool(stage, scratch, n):  # type: ignore[no-untyped-def]
    """Take means or maxima over tiles; the last tiles may be cut off at the edge."""
    given = framed(stage, scratch, stage.value, n)
    pooled = matrix(scratch, stage.work, n * stage.height * stage.width, stage.outputs)
    pooled.fill(0 if stage.kind == MEAN else -np.inf)
    for example in range(n):
        for y in range(min(stage.high, stage.height * stage.tall)):
            tall = min(stage.tall, stage.high - y // stage.tall * stage.tall)
            for x in range(min(stage.broad, stage.width * stage.wide)):
                wide = min(stage.wide, stage.broad - x // stage.wide * stage.wide)
                place = (example * stage.height + y // stage.tall) * stage.width + x // stage.wide
                tile, value = pooled[place], given[example, y, x]
                if stage.kind == MEAN:
                    share = np.float32(1 / (tall * wide))
                    for c in range(len(tile)):
                        tile[c] += share * value[c]
                else:
                    for c in range(len(tile)):
                        tile[c] = value[c] if value[c] > tile[c] or value[c] != value[c] else tile[c]


@compiled
def unpool(stage, after, scratch, n):  # type: ignore[no-untyped-def]
    """Divide each tile's error among its places, or assign all of it to the first maximum."""
    given, top, total = (
        framed(stage, scratch, stage.value, n),
        framed(after, scratch, after.value, n),
        framed(stage, scratch, stage.error, n),
    )
    tile_errors = matrix(scratch, stage.work, n * stage.height * stage.width, stage.outputs)
    total.fill(0)
    for example in range(n):
        for y in range(min(stage.high, stage.height * stage.tall)):
            row, tall = y // stage.tall, min(stage.tall, stage.high - y // stage.tall * stage.tall)
            for x in range(min(stage.broad, stage.width * stage.wide)):
                column, wide = x // stage.wide, min(stage.wide, stage.broad - x // stage.wide * stage.wide)
                tile = tile_errors[(example * stage.height + row) * stage.width + column]
                error = total[example, y, x]
                if stage.kind == MEAN:
                    share = np.float32(1 / (tall * wide))
                    for c in range(len(tile)):
                        error[c] = share * tile[c]
                else:
                    value, peak = (
                        given[example, y, x],
                        top[example, row + after.frame_y, column + after.frame_x],
                    )
                    for c in range(len(tile)):
                        met = value[c] == peak[c] or (value[c] != value[c] and peak[c] != peak[c])
                        error[c] = tile[c] if met else np.float32(0)
                        tile[c] = np.float32(0) if met else tile[c]


@compiled
def turn(stage, orders, scratch, n, back):  # type: ignore[no-untyped-def]
    """Put the numbers of every example into a new order, or their errors back into the old one."""
    old = framed(stage, scratch, stage.error if back else stage.value, n).reshape((n, -1))
    new = matrix(scratch, stage.work, n, old.shape[1])
    for example in range(n):
        for k in range(old.shape[1]):
            if back:
                old[example, orders[stage.order + k]] = new[example, k]
            else:
                new[example, k] = old[example, orders[stage.order + k]]


@compiled
def settle(stage, after, vector, scratch, n):  # type: ignore[no-untyped-def]
    """Write the output of a stage into the frame of the next, with bias added and ReLU applied."""
    output, out = scratch[stage.work :], scratch[after.value :]
    height, width, outputs, rectified = stage.height, stage.width, stage.outputs, stage.rectified
    high, line, corner = after.high, after.broad * outputs, after.frame_y * after.broad + after.frame_x
    run = width * outputs
    bias = np.zeros(run, np.float32)
    if stage.bias >= 0:
        for k in range(run):
            bias[k] = vector[stage.bias + k % outputs]
    for example in range(n):
        for y in range(height):
            place, at = (example * height + y) * run, (example * high + y) * line + corner * outputs
            source, target = output[place : place + run], out[at : at + run]
            if rectified:
                for k in range(run):
                    value = source[k] + bias[k]
                    target[k] = np.float32(0) if value < 0 else value
            else:
                for k in range(run):
                    target[k] = source[k] + bias[k]


@compiled
def unsettle(stage, after, scratch, n):  # type: ignore[no-untyped-def]
    """Copy the errors of a stage's output from the frame of the next; return their sums by output."""
    errors, value, error = scratch[stage.work :], scratch[after.value :], scratch[after.error :]
    height, width, outputs, rectified = stage.height, stage.width, stage.outputs, stage.rectified
    high, line, corner = after.high, after.broad * outputs, after.frame_y * after.broad + after.frame_x
    run = width * outputs
    sums = np.zeros(run, np.float32)
    for example in range(n):
        for y in range(height):
            place, at = (example * height + y) * run, (example * high + y) * line + corner * outputs
            target, source, seen = errors[place : place + run], error[at : at + run], value[at : at + run]
            if rectified:
                for k in range(run):
                    passed = source[k]
                    target[k] = np.float32(0) if seen[k] <= 0 else passed
            else:
                for k in range(run):
                    target[k] = source[k]
            for k in range(run):
                sums[k] += target[k]
    for k in range(outputs, run):
        sums[k % outputs] += sums[k]
    return sums


@compiled
def forward(library, stages, orders, vector, scratch, n):  # type: ignore[no-untyped-def]
    """Compute the values of all stages; the last row of `stages` only holds the outputs."""
    for s in range(len(stages) - 1):
        stage = stages[s]
        if stage.kind == PRODUCT:
            if stage.patches != stage.value:
                cut(stage, scratch, n, False)
            output = matrix(scratch, stage.work, n * stage.height * stage.width, stage.outputs)
            weight = matrix(vector, stage.weight, stage.outputs, stage.patch)
            multiply(library, patches_of(stage, scratch, n), False, weight, True, output, 0)
        elif stage.kind == TURN:
            turn(stage, orders, scratch, n, False)
        else:
            pool(stage, scratch, n)
        settle(stage, stages[s + 1], vector, scratch, n)


@compiled
def backward(library, stages, orders, vector, scratch, gradient, n):  # type: ignore[no-untyped-def]
    """Add up the gradients of all stages, starting from the errors of the outputs."""
    for back in range(len(stages) - 1):
        s = len(stages) - 2 - back
        stage = stages[s]
        sums = unsettle(stage, stages[s + 1], scratch, n)
        if stage.kind == PRODUCT:
            errors = matrix(scratch, stage.work, n * stage.height * stage.width, stage.outputs)
            slope = matrix(gradient, stage.weight, stage.outputs, stage.patch)
            multiply(library, errors, True, patches_of(stage, scratch, n), False, slope, 1)
            if stage.bias >= 0:
                for c in range(stage.outputs):
                    gradient[stage.bias + c] += sums[c]
            if s > 0:
                weight = matrix(vector, stage.weight, stage.outputs, stage.patch)
                if stage.patches == stage.value:
                    error = matrix(scratch, stage.error, n, stage.patch)
                    multiply(library, errors, False, weight, False, error, 0)
                else:
                    multiply(library, errors, False, weight, False, patches_of(stage, scratch, n), 0)
                    cut(stage, scratch, n, True)
        elif s > 0 and stage.kind == TURN:
            turn(stage, orders, scratch, n, True)
        elif s > 0:
            unpool(stage, stages[s + 1], scratch, n)


@compiled
def cross_entropy(stage, examples, silo, taken, scratch, n):  # type: ignore[no-untyped-def]
    """Write the errors of the outputs: the softmax, minus 1 at the true class."""
    output = matrix(scratch, stage.value, n, stage.channels)
    error = matrix(scratch, stage.error, n, stage.channels)
    for example in range(n):
        top = output[example, 0]
        for c in range(1, stage.channels):
            top = max(top, output[example, c])
        total = np.float32(0)
        for c in range(stage.channels):
            error[example, c] = math.exp(output[example, c] - top)
            total += error[example, c]
        for c in range(stage.channels):
            error[example, c] /= total
        error[example, examples.classes[silo, taken[example]]] -= np.float32(1)


@compiled
def load(stage, orders, examples, silo, taken, scratch, n):  # type: ignore[no-untyped-def]
    """Write examples into the frame of the first stage; this is where bytes become floats."""
    first = framed(stage, scratch, stage.value, n)
    for example in range(n):
        row, k = taken[example], 0
        for i in range(stage.frame_y, stage.high - stage.frame_y):
            for j in range(stage.frame_x, stage.broad - stage.frame_x):
                for c in range(stage.channels):
                    if len(examples.pixels):
                        value = np.float32(examples.pixels[silo, row, orders[k]])
                    else:
                        value = examples.numbers[silo, row, orders[k]]
                    first[example, i, j, c] = value * examples.scale
                    k += 1


@compiled
def step(vector, gradient, rule, pair):  # type: ignore[no-untyped-def]
    """Move a vector against its gradient and toward its target; `share` may differ by coordinate."""
    rate = rule.rate[pair]
    if not len(rule.target):
        for k in range(len(vector)):
            vector[k] -= rate * gradient[k]
        return
    target, shares = rule.target[pair], rule.share[pair]
    if len(shares) > 1:
        for k in range(len(vector)):
            vector[k] += shares[k] * (target[k] - vector[k]) - rate * gradient[k]
    else:
        share = shares[0]
        for k in range(len(vector)):
            vector[k] += share * (target[k] - vector[k]) - rate * gradient[k]


@compiled
def advance(  # type: ignore[no-untyped-def]
    library, stages, orders, examples, batches, rule, vectors, pairs, scratch, gradient, block
):
    """Take one step for each of some pairs, one block of examples after the other."""
    for pair in pairs:
        silo, end = batches.silo[pair], batches.start[pair] + batches.length[pair]
        gradient.fill(0)
        for first in range(batches.start[pair], end, block):
            n = min(block, end - first)
            taken = batches.example[first : first + n]
            load(stages[0], orders, examples, silo, taken, scratch, n)
            forward(library, stages, orders, vectors[pair], scratch, n)
            cross_entropy(stages[-1], examples, silo, taken, scratch, n)
            backward(library, stages, orders, vectors[pair], scratch, gradient, n)
        step(vectors[pair], gradient, rule, pair)
