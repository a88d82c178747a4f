"""The trained networks of a run: trained when first asked for, saved in its folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from sfr_cl.errors import FileError

from ..harness.results import write_file
from ..harness.run import ShowShare
from . import data, training
from .data import Split
from .problem import Problem


class Networks:
    """Problems with their networks."""

    def __init__(self, folder: Path, seeds: Sequence[int], *, reuse: bool) -> None:
        self.folder = folder
        self.seeds = list(seeds)
        self.reuse = reuse
        """Whether networks in the folder are taken, if they were trained in the same way."""
        self._problems: dict[str, dict[int, Problem]] = {}

    def problem(self, name: str, seed: int, show: ShowShare) -> Problem:
        """A data set and seed, with the network trained."""
        if name not in self._problems:
            splits = {number: data.split(name, number) for number in self.seeds}
            decay = training.weight_decay(name)
            networks = self._saved(name, splits[seed]) if self.reuse else {}
            missing = [number for number in self.seeds if number not in networks]
            if missing:
                parts = [splits[number] for number in missing]
                trained = training.train(parts, missing, decay, show)
                networks |= zip(missing, trained, strict=True)
                self._save(name, networks)
            self._problems[name] = {
                number: Problem(name, number, split, networks[number], decay)
                for number, split in splits.items()
            }
        return self._problems[name][seed]

    def _protocol(self, name: str) -> dict[str, str]:
        return {"protocol": json.dumps(training.protocol(name), sort_keys=True)}

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def _save(self, name: str, networks: Mapping[int, nn.Module]) -> None:
        tensors = {
            f"{seed}.{key}": value
            for seed, network in networks.items()
            for key, value in network.state_dict().items()
        }
        write_file(self._path(name), save(tensors, self._protocol(name)))

    def _saved(self, name: str, split: Split) -> dict[int, nn.Sequential]:
        """By seed, those of the folder, whether this run asks for them or not."""
        path = self._path(name)
        if not path.exists():
            return {}
        try:
            with safe_open(path, framework="pt") as file:
                if file.metadata() != self._protocol(name):
                    return {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise FileError(
                f"expected the networks of an earlier run in {path}, got {error}: "
                "remove it, or choose another --out"
            ) from error
        weights: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            seed, _, parameter = key.partition(".")
            weights.setdefault(int(seed), {})[parameter] = value
        return {seed: _network(split, of_seed) for seed, of_seed in weights.items()}


def _network(split: Split, weights: dict[str, Tensor]) -> nn.Sequential:
    network = training.new_network(split.num_features, split.num_classes, seed=0)
    network.load_state_dict(weights)
    return network
