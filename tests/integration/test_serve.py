"""A served student answers the OpenAI SDK with tool calls, and its server ends when it is told to."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from asyncopd.config.loading import dump
from asyncopd.config.model import ModelSection
from asyncopd.config.root import TrainConfig
from asyncopd.records import Message, Outcome
from asyncopd_envs.calculator.env import Calculator

pytestmark = [pytest.mark.integration, pytest.mark.skipif(sys.platform != "linux", reason="vLLM runs on Linux only")]

ASYNCOPD = [sys.executable, "-m", "asyncopd.cli.main"]
START_TIMEOUT_S = 240
KEY = "a-secret"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_directory(path: Path) -> Path:
    """Lay out a finished run whose student is the shipped teacher, which calls tools reliably."""
    teacher = Path(str(files("asyncopd_envs.calculator"))) / "pair" / "teacher"
    path.mkdir()
    (path / "student").symlink_to(teacher)
    model = ModelSection(model=str(teacher), dtype="float32")
    config = TrainConfig.model_validate(
        {
            "student": model.model_dump(),
            "teacher": model.model_dump(),
            "environment": {"use": "calculator"},
            "engine": {"kv_cache_mib": 64},
        }
    )
    (path / "config.yaml").write_text(dump(config))
    return path


def family_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    parent = psutil.Process(process.pid)
    return [parent, *parent.children(recursive=True)]


class Served:
    """A running `asyncopd serve`."""

    def __init__(self, directory: Path, log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        command = [*ASYNCOPD, "serve", str(directory), "--port", str(self.port), "--max-num-seqs", "4"]
        environment = {**os.environ, "ASYNCOPD_API_KEY": KEY, "OMP_NUM_THREADS": "1"}
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True, env=environment
            )

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()[-4000:]
            time.sleep(0.2)

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def end(self, signum: int) -> tuple[int, list[psutil.Process]]:
        """Send `signum` and return the exit code, and which processes outlive the server by fifteen seconds."""
        family = family_of(self.process)
        self.process.send_signal(signum)
        code = self.process.wait(timeout=60)
        _, alive = psutil.wait_procs(family, timeout=15)
        return code, alive


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    base = tmp_path_factory.mktemp("serve")
    server = Served(run_directory(base / "a run"), base / "log")
    server.wait(server.answers)
    yield server
    if server.process.poll() is None:
        server.end(signal.SIGKILL)


async def solve(client: openai.AsyncOpenAI, world: Calculator, question: str) -> list[dict[str, Any]]:
    """Let the served model and the environment's tools answer a question; return the conversation."""
    tools = [tool.spec.for_template() for tool in world.tools.values()]
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for _ in range(6):
        answer = await client.chat.completions.create(
            model="a run",
            messages=messages,  # type: ignore[arg-type]
            tools=tools,  # type: ignore[arg-type]
            temperature=0,
        )
        (choice,) = answer.choices
        messages.append(choice.message.model_dump(exclude_none=True))
        if choice.finish_reason != "tool_calls":
            break
        for call in choice.message.tool_calls or []:
            assert call.type == "function"
            result = await world.tools[call.function.name](json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return messages


async def test_tool_calls_come_back_through_the_sdk(served: Served) -> None:
    right = 0
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as client:
        for task in Calculator.tasks("test")[:8]:
            world = Calculator()
            await world.reset(task, seed=0)
            messages = await solve(client, world, task.data["question"])
            assert messages[1]["tool_calls"], messages
            step = await world.step(Message(role="assistant", content=messages[-1]["content"]))
            right += step.outcome == Outcome.SUCCESS
    assert right >= 7


def test_the_key_is_required_and_not_in_the_process_list(served: Served) -> None:
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0).models.list()
    assert not any(KEY in word for process in family_of(served.process) for word in process.cmdline())


def test_it_listens_on_loopback_only(served: Served) -> None:
    connections = [c for process in family_of(served.process) for c in process.net_connections("inet")]
    assert {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


def test_interrupting_it_ends_every_process(served: Served) -> None:
    assert len(family_of(served.process)) > 1
    assert served.end(signal.SIGINT) == (0, []), served.log.read_text()[-4000:]


def test_terminating_it_while_it_starts_ends_every_process(tmp_path: Path) -> None:
    served = Served(run_directory(tmp_path / "a run"), tmp_path / "log")
    served.wait(lambda: any("EngineCore" in process.name() for process in family_of(served.process)))
    assert served.end(signal.SIGTERM) == (0, []), served.log.read_text()[-4000:]


def test_a_taken_port_is_refused_in_one_line_before_anything_starts(tmp_path: Path) -> None:
    directory = run_directory(tmp_path / "a run")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = subprocess.run(
            [*ASYNCOPD, "serve", str(directory), "--port", str(port)], capture_output=True, text=True, timeout=60
        )
    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        f"error: --port {port}: cannot be used on 127.0.0.1 (Address already in use); choose another"
    ]


def test_killing_it_ends_every_process(tmp_path: Path) -> None:
    served = Served(run_directory(tmp_path / "a run"), tmp_path / "log")
    served.wait(lambda: any("EngineCore" in process.name() for process in family_of(served.process)))
    assert served.end(signal.SIGKILL) == (-signal.SIGKILL, []), served.log.read_text()[-4000:]
