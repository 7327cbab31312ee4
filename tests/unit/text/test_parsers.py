"""Every format of tool calls: what is read, what is refused, and that nothing raises."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncopd.records import encode
from asyncopd.text.parsers import PARSERS

PIECES = [
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "```json\n", "```", "Action:", "Action Input:", "Final Answer:"),
    *(
        "[",
        "]",
        "{",
        "}",
        "(",
        ")",
        '"',
        "name",
        "arguments",
        "parameters",
        ":",
        ",",
        "=",
        "f(x=1)",
        "\n",
        "\\",
        "0",
        ";",
    ),
]
CALLS = [("search", {"query": "naïve [x]; y", "k": 3}), ("now", {})]


def rendered(format_: str, calls: list[tuple[str, dict[str, object]]]) -> str:
    """Return how a model of the format would make the calls."""
    named = [{"name": name, "arguments": arguments} for name, arguments in calls]
    match format_:
        case "hermes":
            return "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in named)
        case "llama3_json":
            return "; ".join(json.dumps({"name": name, "parameters": arguments}) for name, arguments in calls)
        case "pythonic":
            written = [f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})" for name, arguments in calls]
            return f"[{', '.join(written)}]"
        case "json":
            return json.dumps(named)
        case "react":
            ((name, arguments),) = calls
            return f"Action: {name}\nAction Input: {json.dumps(arguments)}"
    raise AssertionError(format_)


@pytest.mark.parametrize("format_", PARSERS)
def test_calls_are_read_in_order_with_ids_of_their_turn(format_: str) -> None:
    made = CALLS[:1] if format_ == "react" else CALLS
    content, calls = PARSERS[format_](rendered(format_, made), 2)
    assert content == ""
    assert [(call.id, call.name, call.arguments, call.error) for call in calls] == [
        (f"call_2_{number}", name, arguments, None) for number, (name, arguments) in enumerate(made)
    ]


@pytest.mark.parametrize("format_", PARSERS)
@given(text=st.lists(st.sampled_from(PIECES) | st.text(max_size=5)).map("".join))
def test_no_text_raises_and_every_call_can_be_stored(format_: str, text: str) -> None:
    _, calls = PARSERS[format_](text, 0)
    encode(calls)


@pytest.mark.parametrize("format_", PARSERS)
@pytest.mark.parametrize("text", ["It is 4.", "", "  two words\n"])
def test_plain_text_is_content(format_: str, text: str) -> None:
    assert PARSERS[format_](text, 0) == (text.strip(), [])


@pytest.mark.parametrize(
    ("format_", "text", "content", "names"),
    [
        ("llama3_json", 'so<|python_tag|>{"name": "now", "parameters": {}}', "so", ["now"]),
        ("llama3_json", '{"name": "now", "arguments": {"a": 1}}', "", ["now"]),
        ("json", 'Let me see.\n```json\n{"name": "now"}\n```\ndone', "Let me see.\n\ndone", ["now"]),
        ("pythonic", "<|python_start|>[time.now()]<|python_end|>", "", ["time.now"]),
        ("pythonic", "[1, 2]", "[1, 2]", []),
        ("pythonic", "[]", "", []),
        ("react", "I wonder.\nAction: now\nAction Input: {}\nObservation: 3", "I wonder.", ["now"]),
        ("react", "I know.\nFinal Answer: 4\nAction: now\nAction Input: {}", "4\nAction: now\nAction Input: {}", []),
    ],
)
def test_calls_are_told_from_the_text_around_them(format_: str, text: str, content: str, names: list[str]) -> None:
    said, calls = PARSERS[format_](text, 0)
    assert (said, [call.name for call in calls]) == (content, names)
    assert all(call.error is None for call in calls)


@pytest.mark.parametrize(
    ("format_", "text", "error"),
    [
        ("llama3_json", '{"name": "now", "parameters": {', "invalid JSON"),
        ("llama3_json", '{"name": "now"} and more', "text after the JSON"),
        ("llama3_json", "<|python_tag|>[1]", "no name"),
        ("json", '{"answer": 4}', "no name"),
        ("json", '```json\n{"name": }\n```', "invalid JSON"),
        ("pythonic", "[now(3)]", "arguments without a name"),
        ("pythonic", "[now(a=b)]", "arguments are no JSON literals"),
        ("pythonic", "[now(a={1: 2})]", None),
        ("pythonic", "[now(", "not a list of calls"),
        ("pythonic", "[now(a={1, 2})]", "arguments are no JSON literals"),
        ("pythonic", "[now(a=1e999)]", "arguments are no JSON literals"),
        ("pythonic", f"[now(a={10**30})]", "values out of range"),
        ("react", "Action: now", "no Action Input"),
        ("react", "Action: now\nAction Input: three", "invalid JSON"),
        ("react", "Action: \nAction Input: {}", "no name"),
    ],
)
def test_what_cannot_be_read_says_why_and_stays_in_the_content(format_: str, text: str, error: str | None) -> None:
    content, calls = PARSERS[format_](text, 0)
    assert [call.error for call in calls] == [error]
    if error is not None:
        assert content.endswith(text.removeprefix("<|python_tag|>").strip()[-10:])
