"""What a strategy keeps beside its network: samples, importances, posteriors."""

from collections.abc import Iterator, Sequence
from typing import Any

from avalanche.benchmarks.utils import AvalancheDataset
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn

from sfr_cl import SFRPosterior
from sfr_cl.strategies import SFRPlugin

METHODS, BENCHMARKS = ("avalanche.training", "sfr_cl"), "sfr_cl.benchmarks"
LABEL_BYTES = 8
CURRENT = (
    "experience",
    "adapted_dataset",
    "dataloader",
    "mbatch",
    "mb_output",
    "loss",
    "batch_logits",
)
SAMPLES = "memory_x"
"""The attribute in which Avalanche's GEM keeps its samples as tensors."""


def stored_samples(strategy: SupervisedTemplate, stages: Sequence[Any]) -> int:
    """Inputs of earlier experiences that the strategy can still see.

    Of one that is trained on several experiences at once (a stage), all of theirs.
    """
    total = sum(len(experience.dataset) for experience in _at_once(stages))
    for kept in _kept(strategy):
        if isinstance(kept, AvalancheDataset):
            total += len(kept)
        elif hasattr(kept, SAMPLES):
            total += sum(len(x) for x in getattr(kept, SAMPLES).values())
        elif isinstance(kept, SFRPlugin):
            total += sum(len(task.z) for task in kept.tasks)
    return total


def state_bytes(strategy: SupervisedTemplate, stages: Sequence[Any]) -> int:
    """Bytes of all tensors and samples among what is kept."""
    together = [experience.dataset for experience in _at_once(stages)]
    total = sum(len(dataset) * _bytes_of(dataset[0]) for dataset in together)
    for kept in _kept(strategy):
        if isinstance(kept, AvalancheDataset):
            total += len(kept) * _bytes_of(kept[0])
        elif isinstance(kept, Tensor):
            total += kept.nbytes
    return total


def _at_once(stages: Sequence[Any]) -> list[Any]:
    """Experiences that are there together in one stage."""
    return [
        experience
        for stage in stages
        if not hasattr(stage, "dataset") and len(stage) > 1
        for experience in stage
    ]


def _bytes_of(sample: Any) -> int:
    return sum(part.nbytes if isinstance(part, Tensor) else LABEL_BYTES for part in sample)


def _kept(strategy: SupervisedTemplate) -> Iterator[Any]:
    """Everything reachable from the strategy's plug-ins and own attributes, once each."""
    seen = {id(part) for part in _of_the_run(strategy)}
    waiting: list[Any] = [strategy]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        waiting.extend(_parts(part))


def _of_the_run(strategy: SupervisedTemplate) -> Iterator[Any]:
    """What every strategy has: the network, the current data and batch, and the evaluator."""
    yield from (strategy.model, strategy.optimizer, strategy.evaluator, strategy.clock)
    yield from strategy.model.parameters()
    yield from strategy.model.buffers()
    yield from (getattr(strategy, name, None) for name in CURRENT)


def _parts(part: Any) -> list[Any]:
    if isinstance(part, Tensor | AvalancheDataset):
        return []
    if isinstance(part, SFRPosterior):
        return [part.state_dict()]  # not what it holds to predict faster
    if isinstance(part, nn.Module):
        return [*part.parameters(), *part.buffers()]
    if isinstance(part, dict):
        return list(part.values())
    if isinstance(part, list | tuple | set):
        return list(part)
    module = type(part).__module__
    if module.startswith(METHODS) and not module.startswith(BENCHMARKS):
        buffer = getattr(part, "buffer", None)
        if isinstance(buffer, AvalancheDataset):
            return [buffer]  # its groups hold the same samples
        slots = [getattr(part, name, None) for name in getattr(part, "__slots__", ())]
        return [*vars(part).values(), *slots] if hasattr(part, "__dict__") else slots
    return []
