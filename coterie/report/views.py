"""A result as a figure and as a folder. (`Result` itself knows nothing about files or plots.)"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..experiment.result import Result
from .folder import Folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Views:
    """Draws results and saves them."""

    def figure(self, result: Result) -> Figure:
        """Draw scores by method and silo, and scores over rounds."""
        from .plot import figure_of

        return figure_of(result)

    def silos(self, result: Result) -> Figure:
        """Draw what each silo gained, and what methods learned of it."""
        from .silos_plot import figure_of_silos

        return figure_of_silos(result)

    def save(self, result: Result, folder: str | Path) -> None:
        """Write the folder that `coterie run` writes."""
        Folder(Path(folder)).save_whole(result)
