"""Lines and bars on the terminal while a study is planned and trained."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from ..experiment.experiment import Experiment
from ..experiment.listener import Listener


def tell(console: Console, text: str, style: str = "") -> None:
    """Print a line, wrapped between words on a terminal and unwrapped to a file or pipe."""
    console.print(text, style=style, soft_wrap=not console.is_terminal, highlight=False, markup=False)


class TidyProgress(Progress):
    """Bars that leave no empty line in a file or a pipe when there is none to show."""

    def stop(self) -> None:
        """End the bars."""
        if self.tasks or self.console.is_interactive:
            super().stop()
        else:
            self.live.transient = True
            self.live.stop()


def progress_bar(console: Console) -> Progress:
    """Return a progress bar with rounds, time left and the current score; a file or a pipe gets none."""
    return TidyProgress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[score]}"),
        console=console,
    )


@dataclass
class Bars:
    """Prints notes and shows a progress bar per method; `told` holds the notes printed so far."""

    progress: Progress
    told: list[str] = field(default_factory=list)
    _tasks: dict[str, TaskID] = field(default_factory=dict)

    def listener(self) -> Listener:
        """Return the listener through which a training updates these bars."""
        return Listener(self._note, self._planning, self._planned, self._round, self._stopping)

    def _note(self, note: str) -> None:
        self.told.append(note)
        tell(self.progress.console, f"note: {note}", "yellow")

    def _task(self, title: str, total: int | None) -> TaskID:
        if title not in self._tasks:
            self._tasks[title] = self.progress.add_task(title, total=total, score="")
        return self._tasks[title]

    def _planning(self, method: str, done: int, total: int) -> None:
        self.progress.update(self._task(f"noise for {method}", None), completed=done, total=total or None)

    def _planned(self, method: str) -> None:
        self.progress.remove_task(self._tasks.pop(f"noise for {method}"))

    def _round(self, experiment: Experiment, number: int, score: float | None) -> None:
        runs = len(experiment.keys)
        name = experiment.method.title.split()[0]
        title = f"{name} ({runs} runs)" if runs > 1 else name
        key = experiment.labels[0]
        if key not in self._tasks:
            rounds = experiment.training.rounds
            self._tasks[key] = self.progress.add_task(title, total=rounds, score="")
        self.progress.update(self._tasks[key], completed=number)
        if score is not None:
            self.progress.update(self._tasks[key], score=f"{experiment.task.metric} {score:.4f}")

    def _stopping(self) -> None:
        tell(self.progress.console, "Stopping after this round (press Ctrl-C again to stop now)")
