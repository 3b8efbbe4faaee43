"""The 1,797 handwritten digits that ship with scikit-learn."""

from __future__ import annotations

import numpy as np

from .table import Table

ROWS = 1797


def read() -> Table:
    """Return the digits as 8 x 8 images with values between 0 and 1."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x, y = (data.images / 16).astype(np.float32), data.target.astype(np.int64)
    return Table("digits", x, y, always_cut=True)
