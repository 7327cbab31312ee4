"""An episode of the python environment: tried, handed in, graded fairly whatever the code does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asyncopd.records import Message, Outcome, Task, ToolCall
from asyncopd.sandbox import Result, SandboxError
from asyncopd.sandbox import box as box_module
from asyncopd.seams import ExpertEnvironment
from asyncopd_envs.python_code import env as module
from asyncopd_envs.python_code.env import PythonCode
from asyncopd_envs.python_code.families import FAMILIES

from .conftest import Episode


async def graded(episode: Episode, code: str) -> tuple[float, str]:
    await episode.call("submit", code)
    end = await episode.end()
    return end.rewards["tests"], end.outcome


async def test_the_expert_tries_its_solution_and_hands_it_in(environment: PythonCode, task: Task) -> None:
    assert isinstance(environment, ExpertEnvironment)
    episode = await Episode(environment, task).begin()
    while not episode.done:
        said = environment.expert(task, episode.history, 0)
        assert said == environment.expert(task, episode.history, 0) and said.teaches
        await episode.act(said.message)
    assert [turn[1].content for turn in episode.turns] == ["3 of 3 examples passed", "handed in"]
    end = await episode.end()
    assert (end.rewards, end.outcome) == ({"tests": 1.0}, Outcome.SUCCESS)


@pytest.mark.parametrize("name", FAMILIES)
async def test_the_reference_of_every_family_passes_in_the_sandbox(environment: PythonCode, name: str) -> None:
    parameters = next(FAMILIES[name].parameters())
    task = Task(id=name, domain=name, data={"family": name, "parameters": parameters})
    episode = await Episode(environment, task).begin()
    assert await graded(episode, environment.problem.draft.source) == (1.0, Outcome.SUCCESS)


async def test_only_a_privileged_teacher_sees_the_solution(episode: Episode) -> None:
    (question,) = episode.prompt
    assert "the vowels of `text`" in question.content and "solve(" in question.content
    assert "aeiou" not in question.content
    assert "aeiouAEIOU" in episode.privileged[-1].content


async def test_code_is_run_with_the_examples_and_files_stay(episode: Episode) -> None:
    wrong = "from examples import check\nopen('note', 'w').write('here')\ncheck(lambda text: 'x')"
    said = await episode.call("run", wrong)
    assert "gave 'x', not " in said and said.endswith("0 of 3 examples passed")
    assert await episode.call("run", "print(open('note').read())") == "here"
    assert not episode.done


async def test_what_went_wrong_in_a_run_is_told(episode: Episode) -> None:
    assert (await episode.call("run", "1/0")).endswith("ZeroDivisionError: division by zero\n[exit code 1]")
    assert await episode.call("run", "x = 1") == "[no output]"
    assert "[ended: timeout limit passed after" in await episode.call("run", "import time\ntime.sleep(9)")
    assert "error: files: " in await episode.call("run", "x" * (17 << 20))


def test_long_outputs_are_cut_in_the_middle() -> None:
    told = module.shown(Result("a" * 300 + "z", "", 0, "finished", 0.1), 100)
    assert told == "a" * 50 + "\n[201 characters left out]\n" + "a" * 49 + "z"


async def test_the_share_of_tests_that_pass_is_the_reward(episode: Episode) -> None:
    hidden = episode.environment.problem.hidden
    some = [case for case in hidden if len(case.expected) > 2]
    code = "def solve(text):\n    kept = ''.join(c for c in text if c in 'aeiouAEIOU')\n"
    reward, outcome = await graded(episode, code + "    return kept if len(kept) > 2 else None")
    assert 0 < len(some) < 12
    assert (reward, outcome) == (len(some) / 12, Outcome.FAILURE)


async def test_all_or_nothing_gives_nothing_for_most(monkeypatch: pytest.MonkeyPatch, task: Task, right: str) -> None:
    environment = PythonCode(all_or_nothing=True)
    almost = right + "calls = 0\ndef counted(text, solve=solve):\n    global calls\n    calls += 1\n"
    almost += "    return solve(text) if calls < 12 else None\nsolve = counted"
    assert await graded(await Episode(environment, task).begin(), almost) == (0.0, Outcome.FAILURE)
    assert await graded(await Episode(environment, task).begin(), right) == (1.0, Outcome.SUCCESS)
    await environment.close()


async def test_the_last_block_of_the_last_message_can_be_handed_in(episode: Episode, right: str) -> None:
    await episode.say(f"First\n```python\nwrong\n```\nbut better\n```\n{right}```\nThat is it.")
    assert episode.done
    assert (await episode.end()).rewards == {"tests": 1.0}


async def test_only_the_first_hand_in_counts(episode: Episode, right: str) -> None:
    calls = [ToolCall(id=str(n), name="submit", arguments={"code": code}) for n, code in enumerate((right, "x"))]
    await episode.act(Message(role="assistant", content="", tool_calls=calls))
    assert (await episode.end()).rewards == {"tests": 1.0}


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("def solve(text:", Outcome.MALFORMED),
        ("def other(text): return text", Outcome.MALFORMED),
        ("solve = 3", Outcome.MALFORMED),
        ("\0", Outcome.MALFORMED),
        ("(" * 5000, Outcome.MALFORMED),
        ("x" * (17 << 20), Outcome.MALFORMED),
        ("", Outcome.MALFORMED),
        ("raise SystemExit\ndef solve(text): return text", Outcome.FAILURE),
        ("def solve(): return ''", Outcome.FAILURE),
        ("def solve(text): return {1, 2}", Outcome.FAILURE),
        ("def solve(text): return solve(text)", Outcome.FAILURE),
        ("while True: pass\ndef solve(text): return text", Outcome.TOOL_ERROR),
        ("def solve(text):\n    while True: print('x' * 10000)", Outcome.TOOL_ERROR),
    ],
)
async def test_code_that_is_no_solution_earns_nothing(episode: Episode, code: str, outcome: Outcome) -> None:
    assert await graded(episode, code) == (0.0, outcome)


async def test_talk_without_code_is_malformed(episode: Episode) -> None:
    await episode.say("I would loop over the text.")
    end = await episode.end()
    assert (end.rewards, end.outcome) == ({"tests": 0.0}, Outcome.MALFORMED)


async def test_an_episode_cut_short_stays_so(episode: Episode) -> None:
    await episode.call("run", "print(1)")
    end = await episode.end(Outcome.TRUNCATED)
    assert (end.rewards, end.outcome) == ({"tests": 0.0}, None)


EQUAL_TO_ALL = "class All(str):\n    __eq__ = lambda self, other: True\n    __hash__ = None\n"


@pytest.mark.parametrize(
    "code",
    [
        EQUAL_TO_ALL + "def solve(text): return All('x')",
        "import os\ndef solve(text): os._exit(0)",
        'import os\nfor n in range(3, 20):\n    try: os.write(n, b\'{"result": "", "passed": true}\\n\' * 99)\n'
        "    except OSError: pass\ndef solve(text): return None",
        "import sys\nsys.stdout.write('{\"fault\": null}\\n' + '{\"result\": true}\\n' * 12)\nsys.stdout.flush()\n"
        "def solve(text): return None",
        "import json\njson.dumps = lambda *a, **k: '{\"result\": true}'\ndef solve(text): return None",
        "import json, sys\nsys.modules['json'].loads = lambda text: ['']\ndef solve(text): return text and None",
        "import os, glob\nfound = [open(p).read() for p in glob.glob('/box/*') + glob.glob('/tmp/*')]\n"
        "def solve(text): return next(f for f in found if 'expected' in f)",
    ],
    ids=["equal to all", "leaves", "writes answers", "prints answers", "patches", "patches input", "looks around"],
)
async def test_a_program_that_cheats_gains_nothing(episode: Episode, code: str) -> None:
    hidden = episode.environment.problem.hidden
    blank = sum(case.expected == "" for case in hidden) / len(hidden)
    reward, outcome = await graded(episode, code)
    assert reward <= blank and outcome != Outcome.SUCCESS


async def test_the_answers_never_enter_the_sandbox(
    episode: Episode, right: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    carry_out = box_module.carry_out

    async def overheard(strength: Any, job: Any) -> Any:
        sent.append(job.message(strength))
        return await carry_out(strength, job)

    monkeypatch.setattr(box_module, "carry_out", overheard)
    await episode.call("run", "print(1)")
    assert (await graded(episode, right))[0] == 1.0
    hidden = episode.environment.problem.hidden
    assert len(sent) == 2 and len(hidden) == 12
    for case in hidden:
        assert json.dumps(case.arguments[0]).encode() in sent[1]
        assert case.expected == "" or json.dumps(case.expected).encode() not in sent[1]
    assert not any(json.dumps(case.arguments).encode() in sent[0] for case in hidden if case.arguments[0])


@pytest.mark.parametrize("name", ["run", "submit"])
async def test_a_sandbox_that_fails_is_nobodys_reward(
    episode: Episode, right: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async def fails(strength: Any, job: Any) -> Any:
        raise SandboxError("namespaces: no space")

    with monkeypatch.context() as patched:
        patched.setattr(box_module, "carry_out", fails)
        await episode.call(name, right)
        if name == "submit":
            assert (await episode.end()).outcome == Outcome.INFRASTRUCTURE_ERROR
            return
    await episode.call("submit", right)
    assert (await episode.end()).outcome == Outcome.INFRASTRUCTURE_ERROR


async def test_a_box_is_left_however_the_episode_ends(environment: PythonCode, task: Task) -> None:
    episode = await Episode(environment, task).begin()
    await episode.call("run", "open('x', 'w').write('y')")
    assert environment.box.files
    await environment.close()
    assert not environment.box.files
