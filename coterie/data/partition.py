"""Cut data without silos into simulated ones: iid, shards, dirichlet, rotated, rotated-masked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import PlainlyMade, Problem, nearest
from .persons import numbered, rows_of_groups

PARTITIONS = ("iid", "shards", "dirichlet", "rotated", "rotated-masked")
# Those that distribute rows by their labels, each with its setting; the others distribute them at random.
BY_LABEL = {"shards": "shards", "dirichlet": "alpha"}


@dataclass(frozen=True)
class Partition(metaclass=PlainlyMade):
    """How rows are distributed among silos.

    `shards` is the number of label-sorted pieces per silo. A small `alpha` means few labels per silo.
    `rotations` is the number of different quarter turns among the silos. `mask` is the chance that a 2 x 2
    patch is white in a silo's mask.
    """

    name: str
    shards: int = 2
    alpha: float = 0.5
    rotations: int = 4
    mask: float = 0.1

    def __post_init__(self) -> None:
        if self.name not in PARTITIONS:
            raise Problem(
                f"data.partition: unknown partition '{self.name}'; {nearest(self.name, PARTITIONS)}"
            )
        for key, good, words in (
            ("shards", self.shards >= 1, "a whole number >= 1"),
            ("alpha", self.alpha > 0, "a number > 0"),
            ("rotations", 1 <= self.rotations <= 4, "a whole number from 1 to 4"),
            ("mask", 0 <= self.mask <= 1, "a probability from 0 to 1"),
        ):
            if not good:
                raise Problem(f"data.{key}: expected {words}, got {getattr(self, key)!r}")


@dataclass(frozen=True, eq=False)
class View:
    """How one silo sees images: turned by quarter turns, and white where `mask` `[height, width]` is set."""

    turns: int = 0
    mask: np.ndarray | None = None

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return the features as the silo sees them."""
        if self.turns:
            x = rotate(x, self.turns)
        return x if self.mask is None else paint(x, self.mask)


def view_of(partition: Partition, shape: tuple[int, ...], k: int, silos: int, seed: int) -> View:
    """Return how silo k of so many sees examples of a shape."""
    if not partition.name.startswith("rotated"):
        return View()
    check_square(shape)
    mask = None
    if partition.name == "rotated-masked":
        mask = draw_mask(shape[0], shape[1], partition.mask, np.random.default_rng([seed, 0x3A5C, k]))
    return View(k * partition.rotations // silos % 4, mask)


Part = tuple[str, np.ndarray, View]


def split_into_silos(
    x: np.ndarray,
    y: np.ndarray,
    classes: bool,
    partition: Partition,
    silos: int,
    seed: int,
    person: np.ndarray | None = None,
) -> list[Part]:
    """Distribute rows among silos; return (name, rows, how the silo sees their features) for each.

    If it is known whose rows they are, all rows of a `person` go to one silo.
    """
    if silos > len(y):
        raise Problem(f"data.silos: {silos} silos are too many for {len(y)} examples")
    if person is not None and partition.name in BY_LABEL:
        raise Problem(
            f"data.partition: '{partition.name}' distributes rows by their labels, so one person would"
            " have rows in several silos; use 'iid'"
        )
    generator = np.random.default_rng([seed, 0x5110])
    if partition.name == "shards":
        rows_by_silo = shards(y, silos, partition.shards, generator)
    elif partition.name == "dirichlet":
        if not classes:
            raise Problem(
                "data.partition: 'dirichlet' needs classes, but the target is a number; use 'shards'"
            )
        rows_by_silo = dirichlet(y, silos, partition.alpha, generator)
    elif person is None:
        rows_by_silo = iid(len(y), silos, generator)
    else:
        several = int(numbered(person).max()) + 1
        if silos > several:
            raise Problem(f"data.silos: {silos} silos are too many for {several} persons")
        rows_by_silo = rows_of_groups(person, iid(several, silos, generator))
    width = len(str(silos - 1))
    return [
        (f"silo-{k:0{width}d}", rows, view_of(partition, x.shape[1:], k, silos, seed))
        for k, rows in enumerate(rows_by_silo)
    ]


def iid(rows: int, silos: int, generator: np.random.Generator) -> list[np.ndarray]:
    """Distribute rows at random, in equal numbers."""
    return np.array_split(generator.permutation(rows), silos)


def shards(y: np.ndarray, silos: int, each: int, generator: np.random.Generator) -> list[np.ndarray]:
    """Sort rows by label, cut them into `silos * each` pieces, and give `each` pieces to every silo."""
    if silos * each > len(y):
        raise Problem(f"data.shards: {silos} x {each} shards are too many for {len(y)} examples")
    order = generator.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    pieces = np.array_split(order, silos * each)
    pieces_by_silo = generator.permutation(silos * each).reshape(silos, each)
    return [np.concatenate([pieces[i] for i in chosen]) for chosen in pieces_by_silo]


def dirichlet(y: np.ndarray, silos: int, alpha: float, generator: np.random.Generator) -> list[np.ndarray]:
    """Distribute each label in proportions drawn from a Dirichlet distribution."""
    for _ in range(100):
        pieces_by_silo: list[list[np.ndarray]] = [[] for _ in range(silos)]
        for label in np.unique(y):
            rows = generator.permutation(np.flatnonzero(y == label))
            cuts = np.cumsum(generator.dirichlet(np.full(silos, alpha)))[:-1] * len(rows)
            for pieces, piece in zip(pieces_by_silo, np.split(rows, cuts.astype(int)), strict=True):
                pieces.append(piece)
        rows_by_silo = [np.concatenate(pieces) for pieces in pieces_by_silo]
        if min(map(len, rows_by_silo)) >= 2:
            return rows_by_silo
    raise Problem(
        f"data.alpha: with alpha {alpha} some of the {silos} silos got fewer than two examples"
        " in each of 100 draws; use a larger alpha or fewer silos"
    )


def check_square(shape: tuple[int, ...]) -> None:
    """Raise `Problem` if examples are not square images."""
    if len(shape) < 2 or shape[0] != shape[1]:
        raise Problem(f"data.partition: rotation needs square images, but the examples have shape {shape}")


def rotate(images: np.ndarray, quarters: int) -> np.ndarray:
    """Rotate square images by quarter turns."""
    check_square(images.shape[1:])
    return np.rot90(images, quarters % 4, axes=(1, 2))


def draw_mask(height: int, width: int, chance: float, generator: np.random.Generator) -> np.ndarray:
    """Draw a pattern of 2 x 2 patches, each set with a chance."""
    grid = generator.random((-(-height // 2), -(-width // 2))) < chance
    return np.repeat(np.repeat(grid, 2, axis=0), 2, axis=1)[:height, :width]


def paint(images: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Paint white where a mask is set."""
    painted = images.copy()
    painted[:, mask] = images.dtype.type(255 if images.dtype == np.uint8 else 1)
    return painted
