"""What is refused of a configuration whose objective learns from the behaviour policy."""

from __future__ import annotations

from typing import Any

import pytest

from asyncopd.config.loading import validate
from asyncopd.config.root import TrainConfig
from asyncopd.errors import UserError
from asyncopd.objectives.presets import build
from asyncopd.runtime.behaviour import check_behaviour

STUDENT = {"use": "reverse_kl_topk", "options": {"support": "student"}}


def check(objective: dict[str, Any], **sections: dict[str, Any]) -> None:
    models = {"student": {"model": "s"}, "teacher": {"model": "t"}, "environment": {"use": "e"}}
    config = validate({**models, "objective": objective, **sections}, TrainConfig)
    check_behaviour(config, build(config.objective).needs)


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 20}])
@pytest.mark.parametrize(
    "objective",
    [
        {"use": "reverse_kl_mc"},
        {"use": "reverse_kl_mc", "width": 1},
        {"use": "reverse_kl_head_tail"},
        {"use": "forward_kl", "options": {"drift": 0.1}},
        STUDENT,
    ],
)
def test_a_cut_is_refused_where_every_token_must_have_a_chance(objective, cut):
    with pytest.raises(UserError, match=rf"rollout\.{next(iter(cut))}.*may be sampled.*reverse_kl_topk, forward_kl$"):
        check(objective, rollout=cut)


@pytest.mark.parametrize("objective", [{"use": "reverse_kl_topk"}, {"use": "forward_kl"}])
def test_a_cut_is_allowed_where_the_teacher_says_what_is_learned(objective):
    check(objective, rollout={"top_p": 0.9, "top_k": 20})


@pytest.mark.parametrize("objective", [{"use": "reverse_kl_mc"}, {"use": "reverse_kl_head_tail"}, STUDENT])
def test_speculation_is_refused_with_draws(objective):
    with pytest.raises(UserError, match=r"speculative_config.*needs draws.*reverse_kl_topk, forward_kl$"):
        check(objective, engine={"options": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}})


def test_speculation_is_allowed_without_draws():
    check({"use": "reverse_kl_mc", "width": 1}, engine={"options": {"speculative_config": {"method": "ngram"}}})


def test_draws_of_a_whole_distribution_are_allowed():
    check({"use": "reverse_kl_head_tail"})
