"""Bounds of how rollouts sample."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from asyncopd.config.rollout import RolloutSection


@pytest.mark.parametrize(
    "wrong", [{"top_p": 0}, {"top_p": 1.01}, {"top_k": -1}, {"top_k": 2.5}, {"temperature": 0}, {"temperature": 0.009}]
)
def test_what_no_sampler_means_is_refused(wrong):
    with pytest.raises(ValidationError):
        RolloutSection(**wrong)


def test_by_default_nothing_is_cut():
    section = RolloutSection()
    assert (section.top_p, section.top_k) == (1, 0)


def test_the_sandbox_is_walled_unless_told_otherwise():
    assert RolloutSection().sandbox == "namespaces"
    with pytest.raises(ValidationError, match="sandbox"):
        RolloutSection(sandbox="hope")
