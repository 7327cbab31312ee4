"""What a user can put right; printed as one line with exit code 2."""

from __future__ import annotations

from typing import Any


class UserError(Exception):
    """Bad input or a bad machine: `where` (a field, file or service), what is wrong, and the way out."""

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        super().__init__(f"{where}: {problem}; {remedy}")
        self.where = where
        self.problem = problem
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        # The message alone does not rebuild it, and an exception that cannot be read breaks a process pool.
        return _rebuild, (type(self), self.args, vars(self))


def _rebuild(kind: type[UserError], arguments: tuple[str, ...], fields: dict[str, Any]) -> UserError:
    error = kind.__new__(kind, *arguments)
    vars(error).update(fields)
    return error
