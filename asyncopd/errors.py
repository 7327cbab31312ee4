"""What a user can put right; printed as one line with exit code 2."""

from __future__ import annotations


class UserError(Exception):
    """Bad input or a bad machine: `where` (a field, file or service), what is wrong, and the way out."""

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        super().__init__(f"{where}: {problem}; {remedy}")
        self.where = where
        self.problem = problem
        self.remedy = remedy
