"""Two ways to bring tensors into vLLM's model: by replacing its modules, or by vLLM's reload.

A CPU build packs each weight for its matrix products, which takes most of a reload. Where modules can be exchanged,
new ones are filled and packed beside the old, while those go on serving.

Each function takes the `model`, its `ModuleMap`, all tensors by name, and the names of those to bring in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import chain

import torch
from vllm.config import ModelConfig, VllmConfig
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import (
    LAYERWISE_INFO,
    _get_original_loader,
    finalize_layerwise_processing,
    get_layerwise_info,
    initialize_online_processing,
)
from vllm.model_executor.model_loader.reload.meta import restore_layer_on_meta, to_meta_tensor
from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs

from asyncopd.engines.vllm.modules import ModuleMap

Tensors = Mapping[str, torch.Tensor]
Install = Callable[[], None]
"""Changes the model, between two steps of generation."""


class IncompleteModule(RuntimeError):
    """A module was given some of its tensors only; the message names it. The model is as before."""


def replaceable(config: VllmConfig) -> bool:
    """Say whether modules can be exchanged: nothing was compiled against their memory, or derived from it."""
    model = config.model_config
    plain = model.enforce_eager and not model.use_mla and model.quantization is None
    return plain and config.device_config.device_type == "cpu"


def by_replacement(model: torch.nn.Module, modules: ModuleMap, tensors: Tensors, names: Collection[str]) -> Install:
    """Fill copies of the modules that hold `names` now; what is returned exchanges them, in about a millisecond.

    Raises `IncompleteModule`.
    """
    copies: dict[torch.nn.Module, torch.nn.Module] = {}
    copy = _shallow_copy(model, copies)
    held = {
        path: module
        for parent in modules.paths(names)
        for path, module in model.get_submodule(parent).named_modules(prefix=parent)
        if get_layerwise_info(module).restore_metadata[0]
    }
    try:
        for module in held.values():
            _empty(copies[module], module)
        copy.load_weights((name, tensors[name]) for name in modules.complete(names))  # type: ignore[operator]
        filled = {module: copies[module] for path, module in held.items() if _is_filled(copies[module], path)}
        for target in filled.values():
            if get_layerwise_info(target).can_load():
                finalize_layerwise_processing(target, None)  # type: ignore[arg-type]  # the config is for attention
    finally:
        for module in held.values():
            _forget(copies[module])
    for head, embedding in _tied_heads(model).items():
        if embedding in filled:
            own = filled[head] = copies[head]
            assert isinstance(own, ParallelLMHead)
            own.weight = filled[embedding].weight
            _pack(own)

    def install() -> None:
        for module, target in filled.items():
            vars(module).update({name: value for name, value in vars(target).items() if name != "_modules"})

    return install


def by_reload(
    model: torch.nn.Module, modules: ModuleMap, tensors: Tensors, names: Collection[str], config: ModelConfig
) -> Install:
    """Only gather tensors now; what is returned has vLLM fill and pack the modules that hold `names`, in place."""
    gathered = [(name, tensors[name]) for name in modules.complete(names)]

    def install() -> None:
        if any(get_layerwise_info(module).can_load() for module in model.modules()):
            # A load that failed half-way left tensors behind, which this one would take for its own.
            finalize_layerwise_reload(model, config)
        initialize_layerwise_reload(model)
        model.load_weights(iter(gathered))  # type: ignore[operator]
        finalize_layerwise_reload(model, config)
        for head in _tied_heads(model):
            _pack(head)

    return install


def _shallow_copy(module: torch.nn.Module, copies: dict[torch.nn.Module, torch.nn.Module]) -> torch.nn.Module:
    """Return a copy of the tree below `module` whose tensors are the same; `copies` gives the copy of each module."""
    if module not in copies:
        copy = copies[module] = object.__new__(type(module))
        children = {name: child and _shallow_copy(child, copies) for name, child in module._modules.items()}
        own = {"_parameters": module._parameters.copy(), "_buffers": module._buffers.copy(), "_modules": children}
        vars(copy).update(vars(module), **own)
    return copies[module]


def _empty(copy: torch.nn.Module, module: torch.nn.Module) -> None:
    """Make `copy` ready to be filled as at the first load, with tensors of its own."""
    recorded = get_layerwise_info(module)
    info = get_layerwise_info(copy)
    parameters, buffers = (
        {name: _unfilled(tensor, module) for name, tensor in tensors.items()} for tensors in recorded.restore_metadata
    )
    info.restore_metadata = parameters, buffers
    info.restore_device = recorded.restore_device
    restore_layer_on_meta(copy, info)
    for name, parameter in copy._parameters.items():
        if parameter is not None and not parameter.is_meta:  # vLLM has biases filled in place
            own = copy._parameters[name] = torch.nn.Parameter(parameter.data.clone(), requires_grad=False)
            own.__class__ = parameter.__class__
            own.__dict__ = parameter.__dict__.copy()
    initialize_online_processing(copy)


def _forget(copy: torch.nn.Module) -> None:
    """Cut what vLLM remembers of a load, loaders among it that would hold the copy, and so its weights, for ever."""
    if (info := LAYERWISE_INFO.pop(copy, None)) is not None:
        for tensor in chain.from_iterable(tensors.values() for tensors in info.restore_metadata):
            tensor.weight_loader = _get_original_loader(tensor)  # type: ignore[attr-defined]


def _unfilled(recorded: torch.Tensor, module: torch.nn.Module) -> torch.Tensor:
    """Return a tensor without memory like one recorded of `module`, with the loader it had before any reload."""
    tensor = restore_layer_refs(to_meta_tensor(recorded), module)
    tensor.weight_loader = _get_original_loader(tensor)  # type: ignore[attr-defined]
    return tensor


def _is_filled(copy: torch.nn.Module, path: str) -> bool:
    """Say whether a copy was given its tensors; False if it was given none. Raises `IncompleteModule`."""
    info = get_layerwise_info(copy)
    if not info.can_load():
        return True
    if info.load_numel > 0 and not isinstance(copy, VocabParallelEmbedding):  # those are padded
        raise IncompleteModule(f"{path} was given {info.load_numel} of its {info.load_numel_total} weights")
    return info.load_numel > 0


def _tied_heads(model: torch.nn.Module) -> dict[ParallelLMHead, VocabParallelEmbedding]:
    """Return the heads that share their weight with an embedding, which each has."""
    embeddings = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    return {
        head: embedding
        for head in embeddings
        for embedding in embeddings
        if isinstance(head, ParallelLMHead) and head is not embedding and head.weight is embedding.weight
    }


def _pack(head: ParallelLMHead) -> None:
    # It keeps a packed copy of the weight, which filling the embedding alone leaves stale.
    head.quant_method.process_weights_after_loading(head)
