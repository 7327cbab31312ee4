"""Losses for distillation and supervised learning: plain functions on tensors, and objectives made of them."""

from asyncopd.objectives.composition import Composition, Term
from asyncopd.objectives.context import Context
from asyncopd.objectives.divergences import forward_kl, reverse_kl_topk
from asyncopd.objectives.monte_carlo import reverse_kl_head_tail, reverse_kl_mc
from asyncopd.objectives.needs import Needs
from asyncopd.objectives.supervised import cross_entropy

__all__ = [
    "Composition",
    "Context",
    "Needs",
    "Term",
    "cross_entropy",
    "forward_kl",
    "reverse_kl_head_tail",
    "reverse_kl_mc",
    "reverse_kl_topk",
]
