"""Run the benchmarks and write benchmarks/results.md (and growth.png).

python -m benchmarks            everything
python -m benchmarks gradients  one part: accountant, gradients, recurrent, adapters, writers, devices, school, ledger, noise, secure_sum, persons, filters, projection, growth, memory, measures, help
"""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    import torch

    import coterie

    from . import (
        accountant,
        adapters,
        devices,
        filters,
        gradients,
        growth,
        ledger,
        measures,
        memory,
        noise,
        persons,
        projection,
        recurrent,
        school,
        secure_sum,
        startup,
        writers,
    )

    parts = {
        "accountant": accountant.report,
        "gradients": gradients.report,
        "recurrent": recurrent.report,
        "adapters": adapters.report,
        "writers": writers.report,
        "devices": devices.report,
        "school": school.report,
        "ledger": ledger.report,
        "noise": noise.report,
        "secure_sum": secure_sum.report,
        "persons": persons.report,
        "filters": filters.report,
        "projection": projection.report,
        "growth": growth.report,
        "memory": memory.report,
        "measures": measures.report,
        "help": startup.report,
    }
    coterie.tune_process()  # as the command line does
    chosen = sys.argv[1:] or list(parts)
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`. Machines are noisy: read the ratios, which are taken in one run, the parties",
        "taking turns, and are medians. Times are of this machine.",
        "",
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, torch"
        f" {torch.__version__} ({torch.get_num_threads()} threads), opacus {version('opacus')},"
        f" dp-accounting {version('dp-accounting')}.",
    ]
    for name in chosen:
        print(f"{name} ...", flush=True)
        found = parts[name]()
        print("\n".join(found), flush=True)
        lines += ["", *found]
    if len(chosen) == len(parts):
        (HERE / "results.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
