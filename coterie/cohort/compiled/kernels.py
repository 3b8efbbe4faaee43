"""SGD of plain sequences, compiled: one silo's batch after the other, each while it is near the processor.

A stage makes values `[examples, height, width, channels]` of those of the stage before. Its input lies in a
frame of zeros as wide as its padding. `stages` says what the numbers of a stage mean and lays the memory out.
Nothing is checked here. All that is compiled is in this file, so that what was kept on disk ages with it.
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
# Without "nnan" and "ninf": what is no number must stay none, or a diverged model could look like a good one.
QUICK = {"contract", "reassoc", "arcp", "nsz"}


class ExampleArrays(NamedTuple):
    """Examples `[silos, longest, features]`, as bytes, or as numbers if there are no bytes; their classes."""

    pixels: np.ndarray
    numbers: np.ndarray
    classes: np.ndarray
    scale: np.float32


class BatchArrays(NamedTuple):
    """The batches of one step: pair k, of a silo, takes `length[k]` examples, from `start[k]` on."""

    silo: np.ndarray
    example: np.ndarray
    start: np.ndarray
    length: np.ndarray


class StepArrays(NamedTuple):
    """How far pairs step for a sum of gradients; a share of the way to a target, if there are any."""

    rate: np.ndarray
    share: np.ndarray
    target: np.ndarray


def compiled(function: Any) -> Any:
    """Compile a function that runs without the interpreter; keep it on disk where there is a place for it."""
    settings: dict[str, Any] = {"nogil": True, "fastmath": QUICK, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **settings)(function)
    except RuntimeError:  # no folder that can be written
        return numba.njit(**settings)(function)


@intrinsic
def call_sgemm(typingctx, address, turned, sizes, scales, a, b, c):  # type: ignore[no-untyped-def]
    """Call the Fortran function at an address: all it takes are places in memory.

    `turned` holds two letters, `sizes` m, n, k and the lengths of the rows of a, b, c, `scales` two numbers.
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
    """Write the product of two matrices, either of them turned; `more` is 1 to add it, 0 to write over."""
    # Fortran's matrices are ours turned: it is told to multiply b and a
    turned = np.array([84 if turn_b else 78, 84 if turn_a else 78], np.uint8)  # T or N
    rows, columns = out.shape
    depth = a.shape[0] if turn_a else a.shape[1]
    # eight bytes each, of which libraries with short numbers read the first four
    sizes = np.array([columns, rows, depth, b.shape[1], a.shape[1], columns], np.int64)
    scales = np.array([1, more], np.float32)
    call_sgemm(library, turned, sizes, scales, b, a, out)  # type: ignore[call-arg]


@compiled
def framed(stage, scratch, start, n):  # type: ignore[no-untyped-def]
    """Give the part of the memory from `start` on as what a stage takes, in its frame."""
    size = stage.high * stage.broad * stage.channels
    return scratch[start : start + n * size].reshape((n, stage.high, stage.broad, stage.channels))


@compiled
def matrix(scratch, start, rows, columns):  # type: ignore[no-untyped-def]
    """Give a part of the memory as a matrix."""
    return scratch[start : start + rows * columns].reshape((rows, columns))


@compiled
def patches_of(stage, scratch, n):  # type: ignore[no-untyped-def]
    """Give where the patches of a stage are; a linear layer's are its input."""
    return matrix(scratch, stage.patches, n * stage.height * stage.width, stage.patch)


@compiled
def cut(stage, scratch, n, back):  # type: ignore[no-untyped-def]
    """Copy the patches of a convolution out of its input, or add their errors up where they came from."""
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
                        here = example * page + y * down + x * right + i * dilation_y + j * dilation_x
                        # indices without a sign: numba does not ask whether they count from the end
                        if back:
                            for k in range(run):
                                image[np.uintp(here + k)] += patches[np.uintp(at + k)]
                        else:
                            for k in range(run):
                                patches[np.uintp(at + k)] = image[np.uintp(here + k)]
                        at += run


@compiled
def pool(stage, scratch, n):  # type: ignore[no-untyped-def]
    """Take means or peaks over tiles; the last ones may be cut off at the edge."""
    given = framed(stage, scratch, stage.value, n)
    made = matrix(scratch, stage.work, n * stage.height * stage.width, stage.outputs)
    made.fill(0 if stage.kind == MEAN else -np.inf)
    for example in range(n):
        for y in range(min(stage.high, stage.height * stage.tall)):
            tall = min(stage.tall, stage.high - y // stage.tall * stage.tall)
            for x in range(min(stage.broad, stage.width * stage.wide)):
                wide = min(stage.wide, stage.broad - x // stage.wide * stage.wide)
                place = (example * stage.height + y // stage.tall) * stage.width + x // stage.wide
                tile, here = made[place], given[example, y, x]
                if stage.kind == MEAN:
                    share = np.float32(1 / (tall * wide))
                    for c in range(len(tile)):
                        tile[c] += share * here[c]
                else:
                    for c in range(len(tile)):
                        tile[c] = here[c] if here[c] > tile[c] or here[c] != here[c] else tile[c]


@compiled
def unpool(stage, after, scratch, n):  # type: ignore[no-untyped-def]
    """Give every place of a tile its share of the tile's error, or all of it to the first peak."""
    given, top, total = (
        framed(stage, scratch, stage.value, n),
        framed(after, scratch, after.value, n),
        framed(stage, scratch, stage.error, n),
    )
    spread = matrix(scratch, stage.work, n * stage.height * stage.width, stage.outputs)
    total.fill(0)
    for example in range(n):
        for y in range(min(stage.high, stage.height * stage.tall)):
            row, tall = y // stage.tall, min(stage.tall, stage.high - y // stage.tall * stage.tall)
            for x in range(min(stage.broad, stage.width * stage.wide)):
                column, wide = x // stage.wide, min(stage.wide, stage.broad - x // stage.wide * stage.wide)
                tile = spread[(example * stage.height + row) * stage.width + column]
                error = total[example, y, x]
                if stage.kind == MEAN:
                    share = np.float32(1 / (tall * wide))
                    for c in range(len(tile)):
                        error[c] = share * tile[c]
                else:
                    here, peak = (
                        given[example, y, x],
                        top[example, row + after.frame_y, column + after.frame_x],
                    )
                    for c in range(len(tile)):
                        met = here[c] == peak[c] or (here[c] != here[c] and peak[c] != peak[c])
                        error[c] = tile[c] if met else np.float32(0)
                        tile[c] = np.float32(0) if met else tile[c]


@compiled
def turn(stage, orders, scratch, n, back):  # type: ignore[no-untyped-def]
    """Put the numbers of every example into another order, or their errors back into the old one."""
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
    """Write what a stage made into the frame of the next one: with its bias, without what is below zero."""
    made, out = scratch[stage.work :], scratch[after.value :]
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
            source, target = made[place : place + run], out[at : at + run]
            if rectified:
                for k in range(run):
                    value = source[k] + bias[k]
                    target[k] = np.float32(0) if value < 0 else value
            else:
                for k in range(run):
                    target[k] = source[k] + bias[k]


@compiled
def unsettle(stage, after, scratch, n):  # type: ignore[no-untyped-def]
    """Take the errors of what a stage made out of the frame of the next one; give their sums by output."""
    spread, value, error = scratch[stage.work :], scratch[after.value :], scratch[after.error :]
    height, width, outputs, rectified = stage.height, stage.width, stage.outputs, stage.rectified
    high, line, corner = after.high, after.broad * outputs, after.frame_y * after.broad + after.frame_x
    run = width * outputs
    sums = np.zeros(run, np.float32)
    for example in range(n):
        for y in range(height):
            place, at = (example * height + y) * run, (example * high + y) * line + corner * outputs
            target, source, seen = spread[place : place + run], error[at : at + run], value[at : at + run]
            if rectified:
                for k in range(run):
                    own = source[k]
                    target[k] = np.float32(0) if seen[k] <= 0 else own
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
    """Make the values of all stages; the last row of `stages` only holds the outputs."""
    for s in range(len(stages) - 1):
        stage = stages[s]
        if stage.kind == PRODUCT:
            if stage.patches != stage.value:
                cut(stage, scratch, n, False)
            made = matrix(scratch, stage.work, n * stage.height * stage.width, stage.outputs)
            weight = matrix(vector, stage.weight, stage.outputs, stage.patch)
            multiply(library, patches_of(stage, scratch, n), False, weight, True, made, 0)
        elif stage.kind == TURN:
            turn(stage, orders, scratch, n, False)
        else:
            pool(stage, scratch, n)
        settle(stage, stages[s + 1], vector, scratch, n)


@compiled
def backward(library, stages, orders, vector, scratch, gradient, n):  # type: ignore[no-untyped-def]
    """Add the gradients of all stages, from the errors of the outputs."""
    for back in range(len(stages) - 1):
        s = len(stages) - 2 - back
        stage = stages[s]
        sums = unsettle(stage, stages[s + 1], scratch, n)
        if stage.kind == PRODUCT:
            spread = matrix(scratch, stage.work, n * stage.height * stage.width, stage.outputs)
            slope = matrix(gradient, stage.weight, stage.outputs, stage.patch)
            multiply(library, spread, True, patches_of(stage, scratch, n), False, slope, 1)
            if stage.bias >= 0:
                for c in range(stage.outputs):
                    gradient[stage.bias + c] += sums[c]
            if s > 0:
                weight = matrix(vector, stage.weight, stage.outputs, stage.patch)
                if stage.patches == stage.value:
                    error = matrix(scratch, stage.error, n, stage.patch)
                    multiply(library, spread, False, weight, False, error, 0)
                else:
                    multiply(library, spread, False, weight, False, patches_of(stage, scratch, n), 0)
                    cut(stage, scratch, n, True)
        elif s > 0 and stage.kind == TURN:
            turn(stage, orders, scratch, n, True)
        elif s > 0:
            unpool(stage, stages[s + 1], scratch, n)


@compiled
def cross_entropy(stage, given, silo, taken, scratch, n):  # type: ignore[no-untyped-def]
    """Write the errors of the outputs: softmax, less 1 for the class that it is."""
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
        error[example, given.classes[silo, taken[example]]] -= np.float32(1)


@compiled
def load(stage, orders, given, silo, taken, scratch, n):  # type: ignore[no-untyped-def]
    """Write examples into the frame of the first stage; bytes become numbers here."""
    first = framed(stage, scratch, stage.value, n)
    for example in range(n):
        row, k = taken[example], 0
        for i in range(stage.frame_y, stage.high - stage.frame_y):
            for j in range(stage.frame_x, stage.broad - stage.frame_x):
                for c in range(stage.channels):
                    if len(given.pixels):
                        value = np.float32(given.pixels[silo, row, orders[k]])
                    else:
                        value = given.numbers[silo, row, orders[k]]
                    first[example, i, j, c] = value * given.scale
                    k += 1


@compiled
def step(vector, gradient, course, pair):  # type: ignore[no-untyped-def]
    """Move a vector against its gradient and toward its target; shares may differ by coordinate."""
    rate = course.rate[pair]
    if not len(course.target):
        for k in range(len(vector)):
            vector[k] -= rate * gradient[k]
        return
    target, shares = course.target[pair], course.share[pair]
    if len(shares) > 1:
        for k in range(len(vector)):
            vector[k] += shares[k] * (target[k] - vector[k]) - rate * gradient[k]
    else:
        share = shares[0]
        for k in range(len(vector)):
            vector[k] += share * (target[k] - vector[k]) - rate * gradient[k]


@compiled
def advance(  # type: ignore[no-untyped-def]
    library, stages, orders, given, drawn, course, vectors, pairs, scratch, gradient, block
):
    """Take one step of each of some pairs, a block of examples after the other."""
    for pair in pairs:
        silo, end = drawn.silo[pair], drawn.start[pair] + drawn.length[pair]
        gradient.fill(0)
        for first in range(drawn.start[pair], end, block):
            n = min(block, end - first)
            taken = drawn.example[first : first + n]
            load(stages[0], orders, given, silo, taken, scratch, n)
            forward(library, stages, orders, vectors[pair], scratch, n)
            cross_entropy(stages[-1], given, silo, taken, scratch, n)
            backward(library, stages, orders, vectors[pair], scratch, gradient, n)
        step(vectors[pair], gradient, course, pair)
