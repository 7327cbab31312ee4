"""The strength in force is found by trying, said, and refused where it is too weak."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from asyncopd.cli import doctor
from asyncopd.errors import UserError
from asyncopd.sandbox import MEANINGS, STRENGTHS, Found, Limits, Sandbox, Strength, accept, find, in_force, strength

ONLY_LIMITS = Found("rlimits", {"bubblewrap": "bubblewrap: bwrap is not on PATH", "namespaces": "namespaces: unshare"})
NOTHING = Found(None, {"rlimits": "rlimits: no fork"})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A machine that can be given other walls; what it accepts is forgotten after the test."""
    monkeypatch.setattr(strength, "_weakest", "namespaces")
    monkeypatch.setattr(strength, "_used", False)
    yield monkeypatch


async def test_walls_that_are_too_weak_are_refused_with_the_way_out(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(strength, "_find", lambda: ONLY_LIMITS)
    with pytest.raises(UserError, match=r"rollout\.sandbox namespaces: only rlimits .*bwrap is not on PATH") as refusal:
        async with Sandbox():
            pass
    assert "does not stop the network" in refusal.value.remedy and "rollout.sandbox=rlimits" in refusal.value.remedy
    assert in_force() is None
    accept("rlimits")
    async with Sandbox():
        assert in_force() == ONLY_LIMITS
    assert "does not stop the network" in str(in_force()) and "unshare" in str(in_force())


async def test_where_nothing_stands_nothing_runs(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(strength, "_find", lambda: NOTHING)
    accept("rlimits")
    with pytest.raises(UserError, match="sandbox: none can be built here"):
        async with Sandbox():
            pass


@pytest.mark.parametrize("demanded", STRENGTHS)
async def test_what_is_as_strong_as_demanded_or_stronger_is_accepted(
    machine: pytest.MonkeyPatch, demanded: Strength
) -> None:
    machine.setattr(strength, "_find", lambda: Found("bubblewrap", {}))
    accept(demanded)
    async with Sandbox():
        pass


@pytest.mark.parametrize("fault", ["a file of the machine's can be seen", "the network can be reached"])
def test_walls_that_leak_are_not_taken_for_walls(machine: pytest.MonkeyPatch, fault: str) -> None:
    machine.setattr(strength, "_PROBE", f"import sys\nif sys.argv[2] != 'rlimits': sys.exit({fault!r})")
    found = strength._find.__wrapped__()
    assert found.strength in ("rlimits", None) and fault in found.refused["namespaces"]


def test_doctor_says_what_stands_and_what_to_do(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(doctor, "find", lambda: ONLY_LIMITS)
    check = doctor._sandbox()
    assert MEANINGS["rlimits"] in check.found and "bubblewrap" in check.remedy and not check.blocks
    machine.setattr(doctor, "find", lambda: Found("namespaces", ONLY_LIMITS.refused))
    assert doctor._sandbox().remedy == ""
    machine.setattr(doctor, "find", lambda: NOTHING)
    assert "cannot run here" in doctor._sandbox().remedy


def test_it_is_tried_once(machine: pytest.MonkeyPatch) -> None:
    first = find()
    machine.setattr(strength, "_try", lambda kind: 1 / 0)
    assert find() is first


@pytest.mark.parametrize(
    "wrong",
    [
        {"wall_s": 0},
        {"wall_s": 3601},
        {"cpu_s": 0},
        {"cpu_s": 1.5},
        {"memory_mib": 31},
        {"processes": 0},
        {"processes": 1025},
        {"files": 0},
        {"disk_mib": 0},
        {"disk_mib": 4097},
        {"output_kib": 0},
        {"colour": 1},
    ],
)
def test_a_limit_out_of_bounds_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Limits(**wrong)
