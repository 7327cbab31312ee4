"""What an objective asks of the learner, computed once for all its terms."""

from __future__ import annotations

from dataclasses import dataclass

from asyncopd.records import NO_DRAWS, DrawSpec, Support


@dataclass(frozen=True)
class Needs:
    """Declared by an objective, met by the learner.

    support    the teacher scores every sample must carry, or None where no teacher is asked
    behaviour  whether log μ of the generated tokens is known and used; without it there is no ratio,
               no lag and no freshness (demonstrations)
    draws      extra ids of the behaviour policy that every generated token must carry
    whole      whether μ must give every token its chance, as a ratio to it supposes: neither `rollout.top_p`
               nor `top_k` may cut it
    """

    support: Support | None
    behaviour: bool
    draws: DrawSpec = NO_DRAWS
    whole: bool = False
