"""The scripted expert: makes the worked calls one by one, with errors on purpose where asked."""

from __future__ import annotations

import random
from collections.abc import Sequence

from asyncopd.records import Demonstration, Message, Task, ToolCall
from asyncopd_envs.calculator.options import ExpertErrors

DIGITS, OPERATORS = "0123456789", "+-*/"
ERROR = "error"


def say(task: Task, history: Sequence[Message], seed: int, errors: ExpertErrors) -> Demonstration:
    """Return what the expert says after `history`: its next call, or the last result as the answer."""
    results = [m.content for m in history if m.role == "tool" and not m.content.startswith(ERROR)]
    calls = task.data["calls"]
    if len(results) >= len(calls):
        return Demonstration(message=Message(role="assistant", content=results[-1]))
    call = calls[len(results)]
    arguments = {name: form.format(*results) for name, form in call["form"].items()}
    rng = random.Random(f"{task.id} {seed} {len(history)}")
    first = all(message.role != "assistant" for message in history)
    teaches = True
    if rng.random() < errors.rate and (errors.kind == "kept" or first):
        arguments = {
            name: (_wrong if errors.kind == "kept" else _malformed)(text, task, rng) for name, text in arguments.items()
        }
        teaches = False
    tool_call = ToolCall(id=f"call_{len(history)}", name=call["name"], arguments=arguments)
    return Demonstration(message=Message(role="assistant", content="", tool_calls=[tool_call]), teaches=teaches)


def _wrong(text: str, task: Task, rng: random.Random) -> str:
    """Return another item, or the expression with one digit or operator changed."""
    if text in task.data["prices"]:
        return rng.choice([item for item in task.data["prices"] if item != text])
    alphabet = rng.choice((DIGITS, OPERATORS))
    place = rng.choice([index for index, character in enumerate(text) if character in alphabet])
    return text[:place] + rng.choice(alphabet.replace(text[place], "")) + text[place + 1 :]


def _malformed(text: str, task: Task, rng: random.Random) -> str:
    """Return an item that is not for sale, or the expression without its last operand."""
    if text in task.data["prices"]:
        return rng.choice(("", f"{text}s"))
    return text.rstrip(f"{DIGITS}()")
