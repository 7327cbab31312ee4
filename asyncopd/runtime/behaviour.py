"""Whether the sampler and the engine of a configuration give its objective what it needs of the behaviour policy."""

from __future__ import annotations

from asyncopd.config.root import TrainConfig
from asyncopd.errors import UserError
from asyncopd.objectives.needs import Needs
from asyncopd.objectives.presets import fed_by
from asyncopd.records import NO_DRAWS


def check_behaviour(config: TrainConfig, needs: Needs) -> None:
    """Raise `UserError` for a cut under which the objective would be biased, and for an engine that cannot draw."""
    feeds = f"choose an objective that this feeds: {', '.join(fed_by(NO_DRAWS, config.objective.width))}"
    use = config.objective.use + "".join(f", {option}" for option in config.objective.options)
    cuts = {"top_p": config.rollout.top_p < 1, "top_k": config.rollout.top_k > 0}
    for name in (name for name, cut in cuts.items() if cut and (needs.whole or needs.draws != NO_DRAWS)):
        raise UserError(
            f"rollout.{name} {config.rollout.model_dump()[name]}",
            f"objective {use} supposes that every token may be sampled, and a cut forbids most",
            f"leave it out, or {feeds}",
        )
    if config.engine.options.get("speculative_config") is not None and needs.draws != NO_DRAWS:
        raise UserError(
            "engine.options.speculative_config",
            f"objective {use} needs draws of each token's distribution, and vLLM gives none where it speculates",
            f"leave it out, or {feeds}",
        )
