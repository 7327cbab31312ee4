"""Tool calls are read from text, and what is no call says why."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncopd.records import ToolCall, encode
from asyncopd.text.parsers import hermes

words = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        words,
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


def parse(text: str, turn: int = 0) -> tuple[str, list[ToolCall]]:
    return hermes.parse(text, turn)


def call(name: object = "price", **arguments: object) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


@given(arguments=st.dictionaries(words, values, max_size=3), ascii_only=st.booleans())
def test_any_json_arguments_are_read_back(arguments: dict[str, object], ascii_only: bool) -> None:
    body = json.dumps({"name": "price", "arguments": arguments}, ensure_ascii=ascii_only)
    content, calls = parse(f"let me see<tool_call>{body}</tool_call>")
    assert content == "let me see"
    assert calls == [ToolCall(id="call_0_0", name="price", arguments=arguments)]


@given(
    text=st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "{", "}", '"', "name", ":", "\\"]) | words).map(
        "".join
    )
)
def test_no_text_raises_and_every_result_can_be_stored(text: str) -> None:
    content, calls = parse(text)
    encode(calls)
    if "<tool_call>" not in text:
        assert (content, calls) == (text.strip(), [])


def test_several_calls_are_read_in_order_with_ids_of_their_turn() -> None:
    content, calls = parse(f"first {call(item='cup')} then {call(item='lamp')} end", turn=3)
    assert content == "first  then  end"
    assert [(c.id, c.arguments) for c in calls] == [("call_3_0", {"item": "cup"}), ("call_3_1", {"item": "lamp"})]


def test_closing_tag_inside_a_string_ends_nothing() -> None:
    _, calls = parse(call(item="a</tool_call>b"))
    assert calls[0].arguments == {"item": "a</tool_call>b"}


def test_call_left_open_at_the_end_counts() -> None:
    content, calls = parse('<tool_call>{"name": "price", "arguments": {}}')
    assert (content, calls[0].error) == ("", None)


def test_call_without_arguments_has_none() -> None:
    _, calls = parse('<tool_call>{"name": "now"}</tool_call>')
    assert calls == [ToolCall(id="call_0_0", name="now", arguments={})]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ('{"name": "price", "arguments": {"item": "cup"}', "invalid JSON"),
        ("", "invalid JSON"),
        ('{"name": "price", "arguments": {"n": NaN}}', "invalid JSON"),
        ('{"name": "price", "arguments": {}}}', "text after the JSON"),
        ('{"arguments": {"item": "cup"}}', "no name"),
        ('{"name": "", "arguments": {}}', "no name"),
        ('{"name": 7, "arguments": {}}', "no name"),
        ('["price"]', "no name"),
        ('{"name": "price", "arguments": "cup"}', "arguments are not an object"),
        ('{"name": "price", "arguments": [1]}', "arguments are not an object"),
        ('{"name": "price", "arguments": null}', "arguments are not an object"),
        ('{"name": "price", "arguments": {"n": 1' + "0" * 30 + "}}", "values out of range"),
        ('{"name": "price", "arguments": {"n": "\\ud800"}}', "values out of range"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_malformed_call_carries_its_reason_and_stays_in_the_content(body: str, error: str) -> None:
    block = f"<tool_call>{body}</tool_call>"
    content, calls = parse(f"so {block} {call(item='cup')}")
    assert [c.error for c in calls] == [error, None]
    assert content == f"so {block}"
    assert calls[1].arguments == {"item": "cup"}


def test_malformed_call_ends_where_the_next_begins() -> None:
    content, calls = parse('<tool_call>{"name": <tool_call>{"name": "price", "arguments": {}}</tool_call>')
    assert [c.error for c in calls] == ["invalid JSON", None]
    assert content == '<tool_call>{"name":'
