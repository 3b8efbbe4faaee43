"""One member of a federation, and its examples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from ..errors import Problem
from .persons import PersonFacts, check_numbers, facts_of_persons


@dataclass(frozen=True, eq=False)
class Silo:
    """One member: its training examples, and test examples that no statement covers.

    `person` is the number of the person that each training row is about, `test_person` of each test row, if
    that is known. Both count from 0: nobody is in both parts. A silo without examples has `about` instead:
    what is public about its persons.
    """

    name: str
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    person: Tensor | None = None
    test_person: Tensor | None = None
    about: PersonFacts | None = None

    def __post_init__(self) -> None:
        for part, x, y in (("training", self.x, self.y), ("test", self.test_x, self.test_y)):
            several = y.dim() == 2 and y.shape[1] > 1
            if not (y.dim() == 1 or several) or len(x) != len(y):
                raise Problem(
                    f"data: silo '{self.name}' needs one target for each of its {len(x)} {part} examples, got"
                    f" targets of shape {tuple(y.shape)}"
                )
        for key, person, rows in (
            ("person", self.person, self.y),
            ("test_person", self.test_person, self.test_y),
        ):
            if person is not None:
                check_numbers(self.name, key, person, len(rows))

    @cached_property
    def persons(self) -> PersonFacts | None:
        """What is public about the silo's persons, if it is known whose rows are whose."""
        return facts_of_persons(self.person, self.test_person) or self.about

    def __repr__(self) -> str:
        return f"Silo('{self.name}': {len(self.y)} training and {len(self.test_y)} test examples)"
