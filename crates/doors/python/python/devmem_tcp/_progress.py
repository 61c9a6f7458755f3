"""Progress of a load: for a function of the program, a terminal or a log."""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds between two reports.
_INTERVAL = 0.1
_BAR = 30


class Progress:
    """How far a load is."""

    __slots__ = ("nbytes", "seconds", "taken", "total_nbytes")

    def __init__(self, nbytes: int, total_nbytes: int, taken: int, seconds: float) -> None:
        #: Bytes that are in place.
        self.nbytes = nbytes
        #: Bytes of all tensors that are loaded.
        self.total_nbytes = total_nbytes
        #: The number of tensors that the program has taken.
        self.taken = taken
        #: Time since the load began.
        self.seconds = seconds

    def __repr__(self) -> str:
        return (
            f"<Progress {self.nbytes} of {self.total_nbytes} bytes, {self.taken} tensors taken, {self.seconds:.1f} s>"
        )


class Reporter:
    """Tells the progress now and then."""

    def __init__(self, wanted: Callable[[Progress], object] | bool | None) -> None:
        self._begun = time.monotonic()
        self._due = self._begun
        self._finish: Callable[[], None] | None = None
        self._tell: Callable[[Progress], object] | None
        if wanted is True:
            shown = _Bar() if sys.stderr.isatty() else _Lines()
            self._tell, self._finish = shown.show, shown.finish
        elif wanted is None or wanted is False:
            self._tell = None
        elif callable(wanted):
            self._tell = wanted
        else:
            raise TypeError(f"progress={wanted!r}: a function, True or None is needed")

    def see(self, progress: Callable[[], tuple[int, int]], taken: int, is_over: bool) -> None:
        """Tells, if it is time to, and at the end."""
        now = time.monotonic()
        if self._tell is None or (now < self._due and not is_over):
            return
        self._due = now + _INTERVAL
        nbytes, total = progress()
        self._tell(Progress(nbytes, total, taken, now - self._begun))

    def close(self) -> None:
        """Ends the line."""
        if self._finish is not None:
            self._finish()
            self._finish = None


def _text(progress: Progress) -> str:
    rate = progress.nbytes / max(progress.seconds, 1e-3)
    done, total = progress.nbytes / 1e9, progress.total_nbytes / 1e9
    return f"{done:.2f} of {total:.2f} GB, {rate / 1e9:.2f} GB/s, {progress.taken} tensors"


class _Bar:
    """A line of a terminal that is written again and again."""

    def __init__(self) -> None:
        self._is_shown = False

    def show(self, progress: Progress) -> None:
        share = progress.nbytes / progress.total_nbytes if progress.total_nbytes else 1.0
        full = int(share * _BAR)
        bar = "=" * full + " " * (_BAR - full)
        sys.stderr.write(f"\r[{bar}] {share:4.0%} {_text(progress)} \x1b[K")
        sys.stderr.flush()
        self._is_shown = True

    def finish(self) -> None:
        if self._is_shown:
            sys.stderr.write("\n")


class _Lines:
    """A line for each tenth: for logs and notebooks. The last one is written when the tensors are taken, too."""

    def __init__(self) -> None:
        self._next = 1
        self._last: Progress | None = None

    def show(self, progress: Progress) -> None:
        tenths = 10 * progress.nbytes // progress.total_nbytes if progress.total_nbytes else 10
        self._last = progress if tenths == 10 else None
        if self._next <= tenths < 10:
            self._next = tenths + 1
            self._write(tenths, progress)

    def finish(self) -> None:
        if self._last is not None:
            self._write(10, self._last)

    def _write(self, tenths: int, progress: Progress) -> None:
        print(f"{tenths * 10:3} %: {_text(progress)}", file=sys.stderr, flush=True)
