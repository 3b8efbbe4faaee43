"""Errors whose messages are written for people, and calls that are refused in a sentence."""

from __future__ import annotations

import difflib
import functools
import inspect
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type[Any])
SHORT = 30  # letters of an argument that a message repeats


class Problem(ValueError):
    """A mistake that the user can fix; the message is one sentence that says how."""


class Refused(Problem):
    """A request that was refused because it would break a privacy guarantee."""


def nearest(word: object, known: Iterable[object]) -> str:
    """Return a hint that names the closest known word, whatever its case, or lists all of them.

    >>> nearest("MRMTL", ["local", "mr-mtl"])
    "did you mean 'mr-mtl'?"
    """
    folded = {str(name).lower(): str(name) for name in known}
    if not folded:
        return "there are none"
    close = difflib.get_close_matches(str(word).lower(), folded, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{folded[close[0]]}'?"
    return "known: " + ", ".join(sorted(folded.values()))


def reason(error: Exception) -> str:
    """Return why something could not be read, without repeating the error number and the path.

    >>> reason(FileNotFoundError(2, "No such file or directory", "x"))
    'no such file or directory'
    >>> reason(UnicodeDecodeError("utf-8", b"x", 0, 1, "invalid start byte"))
    'it is not text'
    """
    if isinstance(error, UnicodeDecodeError):
        return "it is not text"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error)


def first_line(error: BaseException) -> str:
    """Return what an error of another library is and says, in one line.

    >>> first_line(KeyError("dose"))
    "KeyError: 'dose'"
    """
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__


def shown(value: object) -> str:
    """Return a value as a message repeats it: in full if that is short, else its type.

    >>> shown(3), shown("x" * 99)
    ('3', 'a str')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value)
    return text if len(text) <= 2 * SHORT and "\n" not in text else f"a {type(value).__name__}"


def as_path(name: str, value: object) -> Path:
    """Return an argument as a path; raise `Problem` if it cannot be one."""
    if isinstance(value, str | PathLike) and str(value):
        return Path(value)
    raise Problem(f"{name}: expected a path, got {shown(value)}")


def check_call(
    name: str, signature: inspect.Signature, arguments: Sequence[Any], named: Mapping[str, Any]
) -> None:
    """Raise `Problem` if a call does not fit a signature, and say how to write it."""
    parameters = signature.parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    unknown = [key for key in named if key not in parameters]
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        known = f"; {nearest(unknown[0], parameters)}" if parameters else "; it takes none"
        raise Problem(f"{name}: unknown argument '{unknown[0]}'{known}")
    by_place = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    more = arguments[len(by_place) :]
    if more and inspect.Parameter.VAR_POSITIONAL not in kinds:
        free = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY and p.name not in named]
        given = [repr(value) if len(repr(value)) <= SHORT else "..." for value in more]
        words = ", ".join(f"{key}={value}" for key, value in zip(free, given, strict=False))
        places = ["..."] * len(by_place)
        if words:
            raise Problem(f"{name}: give arguments by name, as in {name}({', '.join([*places, words])})")
        most = f"takes {len(by_place)}" if by_place else "takes none"
        raise Problem(f"{name}: {len(arguments)} argument(s) were given, but it {most}: leave out {given[0]}")
    try:
        signature.bind(*arguments, **named)
    except TypeError as error:  # an argument is missing, or given twice
        raise Problem(f"{name}: {error}") from None


def plainly(function: Function) -> Function:
    """Make a function refuse wrong arguments with a `Problem` that says how to call it."""
    signature = inspect.signature(function)
    own = "self" in signature.parameters
    shown_signature = signature
    if own:
        shown_signature = signature.replace(parameters=list(signature.parameters.values())[1:])

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except TypeError:
            check_call(function.__name__, shown_signature, arguments[1:] if own else arguments, named)
            raise

    return cast("Function", called)


def plain_methods(kind: Class) -> Class:
    """Make all public methods of a class refuse wrong arguments in a sentence."""
    for name, value in list(vars(kind).items()):
        if inspect.isfunction(value) and not name.startswith("_"):
            setattr(kind, name, plainly(value))
    return kind


class PlainlyMade(ABCMeta):
    """The class of classes whose constructors refuse wrong arguments in a sentence."""

    if not TYPE_CHECKING:

        def __call__(cls, *arguments: Any, **named: Any) -> Any:
            """Make an object."""
            if cls.__abstractmethods__:
                missing = " and ".join(f"`{name}`" for name in sorted(cls.__abstractmethods__))
                raise Problem(f"{cls.__name__} cannot be made: it has no {missing}")
            try:
                return super().__call__(*arguments, **named)
            except TypeError:
                check_call(cls.__name__, cls.__signature__, arguments, named)
                raise

        @property
        def __signature__(cls) -> inspect.Signature:
            """How the class is called."""
            whole = inspect.signature(cls.__init__)
            return whole.replace(parameters=list(whole.parameters.values())[1:], return_annotation=cls)
