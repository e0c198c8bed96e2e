"""How far the diagnostics have come, on the terminal."""

from bwt.progress import Progress


class Bar:
    def __init__(self, total: int, quiet: bool):
        self.progress, self.done, self.text = Progress(total, 0, quiet=quiet), 0, ""

    def show(self, text: str) -> None:
        self.text = text
        if self.progress.shown:
            self.progress.draw(self.done, text)

    def tick(self) -> None:
        self.reach(self.done + 1)

    def reach(self, done: int) -> None:
        self.done = done
        self.show(self.text)

    def clear(self) -> None:
        self.progress.clear()
