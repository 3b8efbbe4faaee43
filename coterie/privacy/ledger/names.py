"""When two names mean the same data set.

A name can be written in several ways: with spaces around it, composed or decomposed accents, a whole number
as 1.0, a number with leading zeros. None of them is another data set, so none of them opens another budget.
"""

from __future__ import annotations

import re
import unicodedata

CUT = " cut by "  # between the name of data and how silos were cut from it


def tidy(name: str) -> str:
    """Return a name without spaces around it, with accents composed.

    >>> tidy(" clinics ")
    'clinics'
    """
    return unicodedata.normalize("NFC", name).strip()


def tidy_silo(name: str) -> str:
    """Return a silo's name as ledgers have it; a whole number is written without a fraction.

    >>> tidy_silo("7.0")
    '7'
    """
    return re.sub(r"\A([+-]?\d+)\.0*\Z", r"\1", tidy(name))


def silo_key(name: str) -> str:
    """Return what is equal for all names of one silo: a number, if the silo is numbered.

    >>> silo_key("silo-07") == silo_key("7.0")
    True
    """
    numbered = re.fullmatch(r"(?:silo-)?0*(\d+)", tidy_silo(name))
    return tidy_silo(name) if numbered is None else numbered[1]


def data_name(source: str) -> str:
    """Return the name of the data that a source was cut from, in lower case.

    >>> data_name('Clinics cut by {"partition": "iid"}')
    'clinics'
    """
    return tidy(source.partition(CUT)[0]).casefold()
