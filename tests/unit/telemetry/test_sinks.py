"""Lines are whole, whatever became of the process or the disk that wrote them."""

from __future__ import annotations

import resource

import pytest

from asyncopd.errors import UserError
from asyncopd.telemetry.sinks import JsonLines


def test_a_line_torn_by_a_crash_is_dropped(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n{"a": 2')
    lines = JsonLines(path)
    lines.write({"a": 3})
    assert lines.read() == [{"a": 1}, {"a": 3}]
    lines.close()


def test_a_file_of_one_torn_line_begins_anew(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a"')
    lines = JsonLines(path)
    assert lines.read() == []
    lines.close()


def test_a_full_disk_is_told_and_tears_no_line(tmp_path):
    lines = JsonLines(tmp_path / "lines.jsonl")
    lines.write({"text": "first"})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]))
    try:
        with pytest.raises(UserError, match=r"lines.jsonl: cannot be written"):
            lines.write({"text": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    lines.write({"text": "last"})
    assert [line["text"] for line in lines.read()] == ["first", "last"]
    lines.close()


def test_rewritten_it_holds_what_it_was_given_and_goes_on(tmp_path):
    lines = JsonLines(tmp_path / "lines.jsonl")
    for number in range(4):
        lines.write({"n": number})
    lines.rewrite(lines.read()[:2])
    lines.write({"n": 9})
    assert [line["n"] for line in lines.read()] == [0, 1, 9]
    lines.close()
