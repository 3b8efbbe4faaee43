"""Make a table of twelve hospitals with all that real tables have, and compare what was trained on it.

    python hospitals.py                                 # writes hospitals.csv and new_patients.csv
    coterie data show hospitals.csv                     # what its columns look like
    coterie init hospitals.csv --out hospitals.toml --set "data.feature_range = { age = [18, 108], ... }"
    coterie plan hospitals.toml
    coterie run hospitals.toml --out study
    coterie statement show study/statements/local/north.json
    coterie predict study/models/local/north.safetensors new_patients.csv
    python hospitals.py study                           # beside it: logistic regression without privacy

All patients are invented.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import coterie

HOSPITALS = (
    "north", "south", "east", "west", "harbour", "hill",
    "lake", "forest", "bridge", "castle", "market", "mill",
)  # fmt: skip
WARDS = ("medicine", "surgery", "cardiology", "emergency", "geriatrics")
RANGES = {  # public: what the forms allow, and the years of the study
    "age": [18, 108], "stays": [0, 10], "creatinine": [0, 4], "pulse": [40, 160], "admitted": [21, 25],
    "discharged": [21, 25],
}  # fmt: skip


def make_table(patients: int = 260, seed: int = 0) -> pd.DataFrame:
    """Return stays of patients in hospitals: about one in twelve is followed by a readmission."""
    draw = np.random.default_rng(seed)
    parts = []
    for hospital in HOSPITALS:
        count = int(patients * draw.uniform(0.5, 1.5))
        stays = draw.geometric(0.55, count).clip(max=8)
        who = np.repeat(np.arange(count), stays)
        n = len(who)
        age = draw.normal(66, 15, count).clip(18, 105).round()[who]
        sex = draw.choice(["f", "m"], count)[who]
        number = np.concatenate([np.arange(each) for each in stays])
        ward = draw.choice(WARDS, n, p=[0.34, 0.26, 0.18, 0.14, 0.08]).astype(object)
        creatinine = draw.lognormal(0.0 + 0.004 * (age - 66), 0.35).round(2)
        pulse = draw.normal(84, 14, n).clip(40, 160).round()
        day = pd.Timestamp("2021-01-01") + pd.to_timedelta(draw.integers(0, 1400, n), unit="D")
        length = draw.geometric(0.16, n)
        own = draw.normal(size=4) * 0.5  # how this hospital differs from the others
        risk = (
            -4.1 + own[0]
            + (0.9 + 0.3 * own[1]) * (age - 66) / 15
            + (1.1 + 0.3 * own[2]) * (creatinine - 1) / 0.4
            + 0.5 * (pulse - 84) / 14 + 0.45 * number
            + np.select([ward == "cardiology", ward == "surgery"], [0.7 + 0.3 * own[3], -0.6], 0.0)
            + 0.03 * length
        )  # fmt: skip
        rare = draw.random(n) < 0.006
        ward[rare] = draw.choice(["burns", "tropical medicine", "toxicology"], int(rare.sum()))
        parts.append(
            pd.DataFrame(
                {
                    "hospital": hospital,
                    "patient_id": [f"{hospital[:2].upper()}-{1000 + 7 * k}" for k in who],
                    "admitted": day.strftime("%Y-%m-%d"),
                    "discharged": (day + pd.to_timedelta(length, unit="D")).strftime("%Y-%m-%d"),
                    "age": age,
                    "sex": pd.Series(sex).mask(draw.random(n) < 0.02),
                    "ward": ward,
                    "stays": number,
                    "creatinine": np.where(draw.random(n) < 0.2, np.nan, creatinine),
                    "pulse": np.where(draw.random(n) < 0.05, np.nan, pulse),
                    "consent": "yes",
                    "readmitted": np.where(draw.random(n) < 1 / (1 + np.exp(-risk)), "yes", "no"),
                }
            )
        )
    table = pd.concat(parts, ignore_index=True)
    table.insert(0, "stay_id", 500_000 + 3 * np.arange(len(table)))
    return table


def write_tables(folder: Path) -> None:
    """Write the table to train on, and new patients whose outcome is not known yet."""
    table = make_table()
    table.to_csv(folder / "hospitals.csv", index=False)
    new = make_table(patients=3, seed=1).drop(columns=["readmitted", "consent"])
    new.loc[0, "ward"] = "sleep laboratory"  # a ward that nobody had before
    new.to_csv(folder / "new_patients.csv", index=False)


def compare(study: Path) -> dict[str, float]:
    """Return the area under the curve, over all test rows, of each method and of a model without privacy.

    That is a logistic regression on the training rows of all hospitals, pooled in one place.
    """
    federation = coterie.plan(study / "config.toml").study.experiments[0].federation
    scale = federation.scale
    train = np.concatenate([silo.x.numpy() for silo in federation.silos]) * scale
    labels = np.concatenate([silo.y.numpy() for silo in federation.silos])
    held_out = np.concatenate([silo.test_y.numpy() for silo in federation.silos])
    pooled = LogisticRegression(max_iter=1000).fit(train, labels)
    test = np.concatenate([silo.test_x.numpy() for silo in federation.silos]) * scale
    found = {"pooled, without privacy": float(roc_auc_score(held_out, pooled.decision_function(test)))}
    for folder in sorted((study / "models").iterdir()):
        scores = []
        for silo in federation.silos:
            model = coterie.load_model(folder / f"{silo.name}.safetensors")
            output = model(silo.test_x.float() * scale).detach()
            scores.append(output[:, 1] - output[:, 0] if output.shape[1] == 2 else output[:, 0])
        found[folder.name] = float(roc_auc_score(held_out, np.concatenate(scores)))
    return found


def main() -> None:
    """Write the tables, or compare a study that was trained on them."""
    if len(sys.argv) < 2:
        write_tables(Path())
        print("wrote hospitals.csv and new_patients.csv")
        return
    for name, score in compare(Path(sys.argv[1])).items():
        print(f"{name:28} AUC {score:.3f}")


if __name__ == "__main__":
    main()
