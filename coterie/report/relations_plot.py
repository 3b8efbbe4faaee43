"""Show how silos are related: Omega as a picture, ordered by similarity, and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

MOST_NAMES = 60


def correlations(omega: np.ndarray) -> np.ndarray:
    """Return Omega_ij / sqrt(Omega_ii Omega_jj), which is 1 on the diagonal."""
    scale = np.sqrt(np.maximum(np.diag(omega), 1e-300))
    clipped: np.ndarray = np.clip(omega / np.outer(scale, scale), -1, 1)
    return clipped


def by_similarity(similar: np.ndarray) -> list[int]:
    """Return an order that puts similar silos next to each other (average linkage of 1 - correlation)."""
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
    from scipy.spatial.distance import squareform

    if len(similar) < 3:
        return list(range(len(similar)))
    far = squareform(np.maximum(1 - (similar + similar.T) / 2, 0) * (1 - np.eye(len(similar))), checks=False)
    return [int(k) for k in leaves_list(optimal_leaf_ordering(linkage(far, "average"), far))]


def relations_facts(omega: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """Return Omega and the correlations, both in the order of `silos`, and the picture's order."""
    wide = omega.double().numpy()
    similar = correlations(wide)
    order = [names[k] for k in by_similarity(similar)]
    return {"silos": list(names), "omega": wide.tolist(), "correlation": similar.tolist(), "order": order}


def draw_relations(omega: Tensor, names: Sequence[str], label: str, path: Path) -> None:
    """Draw the correlations as a heat map, with similar silos next to each other, and save it as a PNG."""
    from matplotlib.figure import Figure

    similar = correlations(omega.double().numpy())
    order = by_similarity(similar)
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(similar[np.ix_(order, order)], cmap="RdBu", vmin=-1, vmax=1)
    if len(names) <= MOST_NAMES:
        shown = [names[k] for k in order]
        size = max(4.0, min(9.0, 240 / len(names)))
        axes.set_xticks(range(len(names)), shown, rotation=90, fontsize=size)
        axes.set_yticks(range(len(names)), shown, fontsize=size)
    figure.colorbar(image, label="correlation of models according to Omega", shrink=0.8)
    axes.set_title(f"relations: {label}", fontsize=9, loc="left", wrap=True)
    figure.savefig(path, dpi=130, format="png")
