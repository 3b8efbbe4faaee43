"""The schema of statements: the type of each field, checked before anything is recomputed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...errors import Problem
from ..units import UnitName

Bound = Annotated[float, Field(ge=0)] | None
Share = Annotated[float, Field(ge=0, le=1)]


Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Signature = Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


class Part(BaseModel):
    """A part of a statement; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Guarantee(Part):
    """The certified guarantee; numbers are null if nothing protects the data."""

    unit: UnitName
    adjacency: Literal["zero-out"]
    epsilon: Bound
    lower: Bound
    delta: Share | None
    budget: Bound
    replace_one: Bound
    bound: str
    holds_for: str
    several_silos: dict[str, Bound] | None = None


class Adversary(Part):
    """Epsilon against one adversary: 0 if it sees nothing, null if nothing protects against it."""

    who: str
    epsilon: Bound


class Adversaries(Part):
    """All adversaries for whom epsilon is stated."""

    server: Adversary
    silos: Adversary
    shared: Adversary
    personal: Adversary


class PublishedNumber(Part):
    """What a paper's formula gives for the same events; it is not certified."""

    paper: str
    formula: str
    epsilon: Bound


class EventPart(Part):
    """A release: `count` noisy sums, each on a sample of the examples, or `count` passes over them."""

    mechanism: Literal["gaussian", "laplace", "selection"]
    noise: Annotated[float, Field(ge=0)]
    rate: Share
    count: Annotated[int, Field(ge=1, le=10**12)]
    sampler: Literal["poisson", "fixed", "allocation"]


class DoorPart(Part):
    """A door, how often and how it was opened, and the multiplier of its noise (the scale of a choice)."""

    door: str
    calls: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)]
    sampler: str
    rate: Share
    expected_batch: float
    clip: float | None
    noise: Annotated[float, Field(ge=0)]


class MergesPart(Part):
    """How the uploads of a whole silo were merged."""

    noise: Annotated[float, Field(ge=0)]
    clip: float
    silos: Annotated[int, Field(ge=1)]
    rate: Share
    sampler: Literal["poisson", "fixed"]
    merges: Annotated[int, Field(ge=0, le=10**9)]
    came: Annotated[int, Field(ge=0, le=10**9)]
    noise_by: Literal["server", "silos", "secure"]
    raw_personal: bool
    quantile: Share | None
    mixed: bool
    metered: bool = False
    unequal: bool = False
    dropouts: Annotated[int, Field(ge=0)] = 0
    colluding: Annotated[int, Field(ge=0)] = 0


class TuningPart(Part):
    """A sweep, whose chosen trial the statement is about."""

    distribution: Literal["poisson", "geometric", "negative-binomial"]
    mean: Annotated[float, Field(ge=1)]
    shape: float | None
    most: Annotated[int, Field(ge=1, le=1_000_000)] | None
    ran: Annotated[int, Field(ge=1, le=1_000_000)]
    delta: Share
    score: str
    trial: list[EventPart]
    epsilon: Bound
    notes: list[str]


class Total(Part):
    """What all runs spent against one adversary; null if nothing protects against it."""

    epsilon: Bound
    delta: Annotated[float, Field(ge=0)] | None


class BudgetPart(Part):
    """What all runs on a data set may spend together."""

    epsilon: Annotated[float, Field(gt=0)]
    delta: Share


class LedgerPart(Part):
    """The state of the ledger: totals in the statement's unit and, for a whole silo, per example.

    `sequence` is the number of its signed head, `head` the hash of its last row, and `recovered` how often it
    began again after a loss. `raised` is how often its budget had been raised; older statements do not say.
    """

    file: str
    id: str
    sequence: Annotated[int, Field(ge=1)]
    head: Digest
    budget: BudgetPart
    recovered: Annotated[int, Field(ge=0)]
    run: int
    rounds: int
    total: dict[str, Total]
    chosen: int | None
    as_example: dict[str, Total] | None = None
    raised: Annotated[int, Field(ge=0)] | None = None


class IssuerPart(Part):
    """The public key of who issued a statement, as its .pub file has it."""

    schema_: Annotated[str, Field(alias="schema")]
    id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    public: Digest
    silo: str | None
    made: str
    expires: str | None
    signature: Signature


class DataPart(Part):
    """The data set: its name, what its ledger knows it by, and its number of rows, tests included."""

    name: str
    source: str | None
    fingerprint: str | None
    rows: Annotated[int, Field(ge=0)]


class ModelPart(Part):
    """The model, and its number of trainable parameters."""

    name: str
    parameters: Annotated[int, Field(ge=0)]
    start: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None


class RunPart(Part):
    """The run; all silos of a run state the same id."""

    id: str
    seed: int | None = None
    rounds: Annotated[int, Field(ge=1)] | None = None


class DigestsPart(Part):
    """Digests of the configuration, if there was one, and of the installed package."""

    configuration: Digest | None
    code: Digest


class GridRow(Part):
    """A kind of noisy sum, and its grid: the multiples of 2 to the power of `exponent`.

    Deviation and exponent are null if the grid changes from round to round.
    """

    release: str
    noise: Annotated[float, Field(gt=0)]
    clip: Annotated[float, Field(gt=0)]
    deviation: Annotated[float, Field(gt=0)] | None
    exponent: int | None


class GridPart(Part):
    """The public grids that a metered run's releases were rounded to; a simulation has none."""

    rule: str
    releases: list[GridRow]


class StatementPart(Part):
    """What one silo spent in one run. A metered one is signed; the date is that of the issuer's clock."""

    schema_: Annotated[str, Field(alias="schema")]
    kind: Literal["metered", "simulation"]
    issuer: IssuerPart | None
    time: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")] | None
    silo: str
    method: str
    settings: dict[str, Any]
    guarantee: Guarantee
    adversaries: Adversaries
    published: list[PublishedNumber]
    warnings: list[str]
    tuning: str | TuningPart
    declared_size: Annotated[int, Field(ge=0)]
    doors: list[DoorPart]
    merges: MergesPart | None
    events: list[EventPart]
    randomness: str
    grid: GridPart | None
    data: DataPart
    model: ModelPart
    run: RunPart
    digests: DigestsPart
    stayed_home: list[str]
    ledger: LedgerPart | None
    not_covered: list[str]
    software: dict[str, str]
    checksum: Digest
    signature: Signature | None


def json_schema() -> dict[str, Any]:
    """Return the schema as JSON Schema."""
    return StatementPart.model_json_schema()


def check_shape(content: dict[str, Any]) -> None:
    """Raise `Problem`, naming the field, if a field is missing, unknown or wrong."""
    try:
        StatementPart.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Problem(f"statement: {place}: {first['msg'][0].lower()}{first['msg'][1:]}") from error
