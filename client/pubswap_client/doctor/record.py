"""The findings so far: what a check found, what it could not, and what its errors mean."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pubswap_client.doctor.finding import Finding, Status, of_error, skipped

FIT = (Status.OK, Status.WARNING)


class Record:
    """Findings in the order of the checks."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def add(self, finding: Finding) -> None:
        """One more."""
        self.findings.append(finding)

    def skip(self, needs: str, *names: str) -> None:
        """These checks cannot be made without what `needs` names."""
        self.findings += [skipped(name, needs) for name in names]

    def note(self, name: str, check: Callable[[], Finding]) -> None:
        """A check's finding; an error in it is one too."""
        with self.guarded(name):
            self.add(check())

    @contextmanager
    def guarded(self, name: str, advice: str = "") -> Iterator[None]:
        """Inside, an error is the failure of the check `name`, and the others go on."""
        try:
            yield
        except Exception as error:
            self.add(of_error(name, error, advice))

    def all(self, *names: str, well: tuple[Status, ...]) -> bool:
        """Whether these checks ended in one of these ways."""
        return all(found.status in well for found in self.findings if found.name in names)
