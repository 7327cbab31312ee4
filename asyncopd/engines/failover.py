"""A turn that several engines sample one after another, because the earlier ones died.

Each takes the tokens before its own as context, computed afresh by its own weights: what it samples is of mixed
keys and values only if an update falls in between, which it says itself.

Shapes: R generated tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from asyncopd.records import Draws, DrawSpec, GenerateRequest, Generation, Version


def remainder(request: GenerateRequest, parts: Sequence[Generation], number: int) -> GenerateRequest:
    """Return what is left to ask of `request` after `parts`, as its continuation `number`.

    Versions do not go back within a turn, so it wants at least that of the last token.
    """
    sampled = [token for part in parts for token in part.ids_R.tolist()]
    newest = max((int(part.version_R.max()) for part in parts if len(part.version_R)), default=0)
    return msgspec.structs.replace(
        request,
        request_id=f"{request.request_id}+{number}",
        resume_ids=[*request.resume_ids, *sampled],
        min_version=max(request.min_version, Version.unpack(newest)),
    )


def joined(request: GenerateRequest, parts: Sequence[Generation]) -> Generation:
    """Return `parts`, of which the last is finished, as the one answer to `request`.

    Tokens whose draws were lost with an engine are undrawn.
    """
    if len(parts) == 1:
        return parts[0]
    spec = request.draws
    undrawn = [_undrawn(part, spec) for part in parts]
    draws = [
        Draws.lost(spec, len(part.ids_R)) if _incomplete(part.draws, spec) else part.draws
        for part in parts
        if len(part.ids_R)
    ]
    return Generation(
        ids_R=np.concatenate([part.ids_R for part in parts]),
        logp_R=np.concatenate([part.logp_R for part in parts]),
        version_R=np.concatenate([part.version_R for part in parts]),
        mixed_kv_R=np.concatenate([part.mixed_kv_R for part in parts]),
        stop_reason=parts[-1].stop_reason,
        draws=Draws.join([part for part in draws if part is not None]) if spec.width and draws else None,
        undrawn_R=np.concatenate(undrawn) if any(part_R.any() for part_R in undrawn) else None,
    )


def _undrawn(part: Generation, spec: DrawSpec) -> np.ndarray:
    if _incomplete(part.draws, spec):
        return np.ones(len(part.ids_R), np.uint8)
    return np.zeros(len(part.ids_R), np.uint8) if part.undrawn_R is None else part.undrawn_R


def _incomplete(draws: Draws | None, spec: DrawSpec) -> bool:
    """Whether something that `spec` wants is not in `draws`."""
    given = draws or Draws()
    wanted = ((spec.head, given.head_ids_RK), (spec.tail, given.tail_ids_RM), (spec.iid, given.iid_ids_RM))
    return any(width and ids is None for width, ids in wanted)
