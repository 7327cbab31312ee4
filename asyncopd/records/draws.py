"""Extra tokens per position from the behaviour policy."""

from __future__ import annotations

import msgspec
import numpy as np


class Draws(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids from the behaviour policy μ beside the one generated, with their log μ.

    Shapes: R generated tokens, K head entries, M draws. `head` holds TopK(μ) in falling order;
    `tail` holds draws from μ given not in the head; `iid` holds independent draws from μ.
    Log-probabilities are those of μ itself (never renormalised over the tail), in nats.
    """

    head_ids_RK: np.ndarray | None = None
    head_logp_RK: np.ndarray | None = None
    tail_ids_RM: np.ndarray | None = None
    tail_logp_RM: np.ndarray | None = None
    iid_ids_RM: np.ndarray | None = None
    iid_logp_RM: np.ndarray | None = None
