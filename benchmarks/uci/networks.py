"""The trained networks of a run: made when first asked for, kept in its folder."""

import json
from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from sfr_cl.errors import FileError
from sfr_cl.files import replacing

from ..runner import ShowShare
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
            splits = [data.split(name, seed) for seed in self.seeds]
            decay = training.weight_decay(name)
            networks = self._kept(name, splits) if self.reuse else None
            if networks is None:
                networks = training.train(splits, self.seeds, decay, show)
                self._keep(name, networks)
            self._problems[name] = {
                number: Problem(name, number, split, network, decay)
                for number, split, network in zip(self.seeds, splits, networks, strict=True)
            }
        return self._problems[name][seed]

    def _protocol(self, name: str) -> dict[str, str]:
        protocol = {"seeds": self.seeds, **training.protocol(name)}
        return {"protocol": json.dumps(protocol, sort_keys=True)}

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def _keep(self, name: str, networks: Sequence[nn.Module]) -> None:
        tensors = {
            f"{index}.{key}": value
            for index, network in enumerate(networks)
            for key, value in network.state_dict().items()
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self._path(name)) as file:
            file.write(save(tensors, self._protocol(name)))

    def _kept(self, name: str, splits: Sequence[Split]) -> list[nn.Sequential] | None:
        path = self._path(name)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                if file.metadata() != self._protocol(name):
                    return None
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise FileError(
                f"expected the networks of an earlier run in {path}, got {error}: "
                "remove it, or choose another --out"
            ) from error
        return [_network(split, _of(index, tensors)) for index, split in enumerate(splits)]


def _of(index: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{index}."
    return {
        key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)
    }


def _network(split: Split, weights: dict[str, Tensor]) -> nn.Sequential:
    network = training.new_network(split.num_features, split.num_classes, seed=0)
    network.load_state_dict(weights)
    return network
