"""Findings of an audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Finding(NamedTuple):
    """One thing that has gone wrong: what, where and how strong.

    Examples
    --------
    >>> from bagwise.evaluate import Finding
    >>> print(Finding("size", "size predicts the label", "the number of instances", "AUC 0.990"))
    size: size predicts the label; the number of instances; AUC 0.990
    """

    check: str
    what: str
    where: str
    strength: str

    def __str__(self) -> str:
        return f"{self.check}: {self.what}; {self.where}; {self.strength}"


class Audit:
    """The findings, and which checks ran.

    Parameters
    ----------
    findings : sequence of Finding
    checks : sequence of str
        The checks for which there was enough data.

    Examples
    --------
    >>> from bagwise.datasets import make_gaussian_bags
    >>> from bagwise.evaluate import audit
    >>> bags, y = make_gaussian_bags(40, 5, separation=2, random_state=0, return_X_y=True)
    >>> print(audit(bags, y))
    nothing found by 5 checks: instance-label, bag-label, duplicates, size, length
    """

    def __init__(self, findings: Sequence[Finding], checks: Sequence[str]) -> None:
        self.findings = list(findings)
        self.checks = list(checks)

    def as_json(self) -> dict[str, list[object]]:
        """Checks and findings as plain lists and dictionaries, for a model file."""
        return {
            "checks": list(self.checks),
            "findings": [finding._asdict() for finding in self.findings],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Sequence[Any]]) -> Audit:
        """The audit that `as_json` wrote."""
        return cls([Finding(**finding) for finding in content["findings"]], content["checks"])

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __getitem__(self, index: int) -> Finding:
        return self.findings[index]

    def __str__(self) -> str:
        checks = ", ".join(self.checks)
        if not self.findings:
            return f"nothing found by {len(self.checks)} checks: {checks}"
        return "\n".join(str(finding) for finding in self.findings)

    def __repr__(self) -> str:
        return f"Audit({len(self.findings)} findings, {len(self.checks)} checks)"
