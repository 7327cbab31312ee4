"""The python environment: write a function, try it in a sandbox, hand it in, and hidden tests grade it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AsyncExitStack

from asyncopd.environment import Environment, ToolError, Unjudged, reward, tool
from asyncopd.records import Demonstration, Message, Outcome, Task, ToolCall
from asyncopd.sandbox import Result, Sandbox, SandboxError
from asyncopd_envs.python_code import tasks
from asyncopd_envs.python_code.family import FUNCTION
from asyncopd_envs.python_code.grading import Grade, grade
from asyncopd_envs.python_code.options import Options as PythonOptions
from asyncopd_envs.python_code.problem import problem

BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
USE = f"""

Try code with `run`: there, after `from examples import check`, `check({FUNCTION})` says which of the examples it \
passes. Hand in the whole solution with `submit`, or as a ```python block in a message without calls. You can do so \
once; hidden tests then grade it."""

EXAMPLES = f"""
EXAMPLES = {{examples!r}}

def check(function):
    passed = 0
    for arguments, expected in EXAMPLES:
        try:
            result = function(*eval(repr(arguments)))
        except Exception as error:
            result = error
        right = result == expected
        passed += right
        if not right:
            print(f"{FUNCTION}({{{{', '.join(map(repr, arguments))}}}}) gave {{{{result!r}}}}, not {{{{expected!r}}}}")
    print(f"{{{{passed}}}} of {{{{len(EXAMPLES)}}}} examples passed")
"""


class PythonCode(Environment):
    """Reward `tests` is the share of hidden tests that pass, or with `all_or_nothing` 1 or 0.

    `malformed` is an episode without code that is Python and defines the function; `tool_error` one whose code
    passed a limit of the sandbox while it was graded.
    """

    Options = PythonOptions
    options: PythonOptions

    @staticmethod
    def make_tasks(split: str, options: PythonOptions) -> Sequence[Task]:
        return tasks.generate(split, options)

    async def setup(self) -> None:
        self.problem = problem(**self.task.data, examples=self.options.examples, hidden=self.options.hidden_tests)
        self.submitted: str | None = None
        self.grade: Grade | None = None
        self.fault: SandboxError | None = None
        self._resources = AsyncExitStack()
        self.box = await self._resources.enter_async_context(Sandbox(self.options.limits))

    def prompt(self) -> str:
        return self.problem.question + USE

    def privileged(self) -> list[Message]:
        solution = f"```python\n{self.problem.draft.source}```"
        return [Message(role="user", content=self.prompt()), Message(role="assistant", content=solution)]

    @tool
    async def run(self, code: str) -> str:
        """Run Python code, with its standard library, and show what it prints.

        Files that it writes to its directory are there in the next run.

        Args:
            code: a whole program
        """
        examples = [(case.arguments, case.expected) for case in self.problem.examples]
        try:
            result = await self.box.run(code, files={"examples.py": EXAMPLES.format(examples=examples)})
        except ValueError as error:
            raise ToolError(str(error)) from None
        except SandboxError as error:
            self.fault = error
            raise
        return shown(result, self.options.shown_characters)

    @tool
    async def submit(self, code: str) -> str:
        """Hand in the solution; this ends the task.

        Args:
            code: a module that defines the function
        """
        self.submitted = code if self.submitted is None else self.submitted
        return "handed in"

    def done(self) -> bool:
        return self.submitted is not None

    @reward
    async def tests(self) -> float:
        code = self.submitted if self.submitted is not None else self._last_block()
        if code is None:
            return 0.0
        try:
            if self.fault is not None:
                raise self.fault
            self.grade = await grade(code, self.problem.hidden, self.options.limits)
        except ValueError:
            return 0.0  # larger than any solution, and than the box
        except SandboxError as error:
            raise Unjudged(str(error)) from error
        share = self.grade.passed / self.grade.tests
        return float(share == 1) if self.options.all_or_nothing else share

    def _last_block(self) -> str | None:
        """Return the code in the agent's last message, if there is some."""
        said = [message.content for message in self.history if message.role == "assistant"]
        blocks = BLOCK.findall(said[-1]) if said else []
        return blocks[-1] if blocks else None

    def outcome(self) -> Outcome:
        if self.grade is None or not self.grade.readable:
            return Outcome.MALFORMED
        if self.earned >= self.success_at:
            return Outcome.SUCCESS
        return Outcome.FAILURE if self.grade.ended == "finished" else Outcome.TOOL_ERROR

    async def cleanup(self) -> None:
        await self._resources.aclose()

    def expert(self, task: Task, history: Sequence[Message], seed: int) -> Demonstration:
        """Return what the scripted expert says next: it tries the reference once, then hands it in."""
        source = problem(**task.data, examples=1, hidden=1).draft.source
        tried = any(message.role == "tool" for message in history)
        code = source if tried else f"{source}\nfrom examples import check\ncheck({FUNCTION})\n"
        call = ToolCall(id=f"call_{len(history)}", name="submit" if tried else "run", arguments={"code": code})
        return Demonstration(message=Message(role="assistant", content="", tool_calls=[call]))


def shown(result: Result, limit: int) -> str:
    """Return what an agent is told of a run: both outputs, cut in the middle, and how it ended if not well."""
    parts = [_cut(result.stdout, limit)]
    if result.stderr:
        parts.append(f"[errors]\n{_cut(result.stderr, limit)}")
    if result.ended != "finished":
        parts.append(f"[ended: {result.ended} limit passed after {result.seconds:.1f} s]")
    elif result.exit_code:
        parts.append(f"[exit code {result.exit_code}]")
    return "\n".join(part.rstrip("\n") for part in parts if part) or "[no output]"


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"
