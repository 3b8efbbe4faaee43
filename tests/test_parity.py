"""What a simulation trains and charges, a deployment trains and charges: every method, one example protected."""

from __future__ import annotations

import pytest

from tests.parities import check_parity, every_table, title


@pytest.mark.parametrize("table", every_table(), ids=title)
def test_a_deployment_is_the_simulation(tmp_path, table):
    check_parity(tmp_path, table, "example")
