"""A device for machines that have one device only: tensors elsewhere, computed on the CPU.

A :class:`DeviceTensor` says it is on ``meta`` and holds its values on the CPU. While
:func:`device` is open, whatever is made on or moved to ``meta`` is one, and what a GPU refuses is
refused in its words: two devices in one operation (but for CPU scalars, and CPU indices into a
tensor of the device), a random generator of the other device, NumPy's view of device memory.

What it does not have: kernels, memory and streams of its own, and a generator that is seeded by
itself; :func:`torch.load` does not know its tensors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("meta")

aten = torch.ops.aten

MIXED = "Expected all tensors to be on the same device, but found at least two devices"

CROSSING = {aten.copy_.default, aten._to_copy.default}
"""What moves values from one device to another."""

INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
    aten._unsafe_index_put.default,
}
"""What takes CPU indices into a tensor of the device, and a CPU scalar to put there."""

SCALARS = {aten.masked_fill.Tensor, aten.masked_fill_.Tensor, aten.fill.Tensor, aten.fill_.Tensor}
"""What takes CPU scalars beside pointwise operations."""


MATERIALISED = {
    aten._conj.default: aten.conj_physical.default,
    aten._neg_view.default: aten.neg.default,
    aten._efficientzerotensor.default: aten.zeros.default,
}
"""What marks a tensor instead of computing: marks are read before a wrapper sees the operation."""


class DeviceTensor(Tensor):
    """Values on the CPU that say they are elsewhere."""

    lacks: tuple[torch.dtype, ...] = ()
    """What the device can't hold."""

    _values: Tensor

    def __new__(cls, values: Tensor) -> DeviceTensor:
        assert type(values) is Tensor
        assert values.device.type == "cpu"
        assert not any([values.is_conj(), values.is_neg(), values._is_zerotensor()])
        if values.dtype in cls.lacks:
            raise TypeError(
                "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support "
                "float64. Please use float32 instead."
            )
        found: DeviceTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            layout=values.layout,
            device=DEVICE,
        )
        found._values = values
        return found

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: DeviceTensor) -> None:
        Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self._values = other._values

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceTensor:
        if id(self) not in memo:
            rebuild, arguments = self.__reduce_ex__(2)
            memo[id(self)] = rebuild(*arguments)
        found: DeviceTensor = memo[id(self)]
        return found

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not self.is_leaf:
            raise RuntimeError("Only Tensors created explicitly by the user support deepcopy")
        is_parameter = isinstance(self, torch.nn.Parameter)
        return _rebuilt, (self._values.clone(), self.requires_grad, is_parameter)

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
            "to host memory first."
        )

    __array__ = numpy

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def __repr__(self, **kwargs: Any) -> str:
        return f"DeviceTensor({self._values!r})"


def _rebuilt(values: Tensor, requires_grad: bool, is_parameter: bool) -> DeviceTensor:
    found: Any = DeviceTensor(values)
    return (
        torch.nn.Parameter(found, requires_grad)
        if is_parameter
        else found.requires_grad_(requires_grad)
    )


class DeviceGenerator(torch.Generator):
    """A generator that knows which of the two devices it draws on."""

    def __new__(cls, device: Any = "cpu") -> DeviceGenerator:
        found: DeviceGenerator = super().__new__(cls)
        found.place = torch.device(device)
        return found


@contextlib.contextmanager
def device(*, lacks: tuple[torch.dtype, ...] = ()) -> Iterator[torch.device]:
    """Let the device exist; it may lack some dtypes."""
    keeps = torch.__future__.get_swap_module_params_on_conversion()
    # As on a GPU a parameter that is moved stays the same object.
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with (
            mock.patch("torch.Generator", DeviceGenerator),
            mock.patch.object(DeviceTensor, "lacks", lacks),
            _Calls(),
            _Operations(),
        ):
            yield DEVICE
    finally:
        torch.__future__.set_swap_module_params_on_conversion(keeps)


class _Calls(TorchFunctionMode):
    """What operations do not show: tensors of Python's numbers, and where a generator draws."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        generator = kwargs.get("generator")
        if isinstance(generator, DeviceGenerator):
            own = args[0].device if args and isinstance(args[0], Tensor) else torch.device("cpu")
            place = own if kwargs.get("device") is None else torch.device(kwargs["device"])
            if place != generator.place:
                raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            place = torch.device(kwargs["device"])
            return func(*args, **{**kwargs, "device": None}).to(place)
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[1], list):
            return func(args[0], torch.tensor(args[1]), *args[2:])
        if func is Tensor.new_tensor and isinstance(args[0], DeviceTensor):
            return args[0]._values.new_tensor(*args[1:], **kwargs).to(kwargs.get("device", DEVICE))
        return func(*args, **kwargs)


class _Operations(TorchDispatchMode):
    """Every operation, of tensors of either device."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is compiled

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if torch.is_inference_mode_enabled():  # there composed operations come as they are
            with self:
                parts = func.decompose(*args, **(kwargs or {}))
            if parts is not NotImplemented:
                return parts
        return _run(func, args, kwargs or {})


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operation on the values, its results on the device it is for."""
    given = list(_tensors((*args, *kwargs.values())))
    here = [each for each in given if isinstance(each, DeviceTensor)]
    place = kwargs.get("device")
    there = bool(here) if place is None else torch.device(place) == DEVICE
    for each in given:
        assert isinstance(each, DeviceTensor) or each.device != DEVICE, f"{func}: without values"
    if not here and not there:
        return func(*args, **kwargs)
    if here and len(here) < len(given):
        _require_one_device(func, args, given)
    found = MATERIALISED.get(func, func)(
        *(_mapped(_values, each) for each in args),
        **{name: _mapped(_values, each) for name, each in kwargs.items() if name != "device"},
        **({} if place is None else {"device": torch.device("cpu")}),
    )
    if torch.Tag.inplace_view in func.tags:
        with no_dispatch():  # the form of the argument itself
            func(*args, **kwargs)
    if func is aten.copy_.default:
        return args[0]
    known = {id(each._values): each for each in here}

    def placed(value: Tensor) -> Tensor:
        if id(value) in known:
            return known[id(value)]
        return DeviceTensor(value) if there else value

    return _mapped(placed, found)


def _values(tensor: Tensor) -> Tensor:
    return tensor._values if isinstance(tensor, DeviceTensor) else tensor


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among an operation's arguments: by themselves, or in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)([_mapped(function, each) for each in value])
    return value


def _require_one_device(func: Any, args: tuple[Any, ...], given: list[Tensor]) -> None:
    """Refuse what a GPU refuses."""
    if func in CROSSING:
        return
    if func in INDEXING and isinstance(args[0], DeviceTensor):
        given = list(_tensors(args[2:3]))
    on_cpu = [each for each in given if not isinstance(each, DeviceTensor)]
    takes_scalars = torch.Tag.pointwise in func.tags or func in SCALARS | INDEXING
    written = func._schema.is_mutable and not isinstance(args[0], DeviceTensor)
    if any(each.ndim or written or not takes_scalars for each in on_cpu):
        raise RuntimeError(f"{MIXED}, cuda:0 and cpu! ({func})")


# What it is compared with ------------------------------------------------------------------------


def assert_same_on_device(scenario: Callable[[torch.device], Any]) -> None:
    """What a scenario gives on the device is what it gives on the CPU, and its tensors are there.

    Args:
        scenario: takes the device, gives tensors, numbers, distributions, or lists and dicts.
    """
    expected = scenario(torch.device("cpu"))
    with device() as place:
        _compare(scenario(place), expected, "result")


def _compare(found: Any, expected: Any, name: str) -> None:
    if isinstance(expected, Distribution):
        assert type(found) is type(expected), name
        found, expected = _contents(found), _contents(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), name
        for key in expected:
            _compare(found[key], expected[key], f"{name}[{key!r}]")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), name
        for at, (one, two) in enumerate(zip(found, expected, strict=True)):
            _compare(one, two, f"{name}[{at}]")
    elif isinstance(expected, Tensor):
        assert isinstance(found, DeviceTensor), f"{name} is on the CPU"
        torch.testing.assert_close(
            found.detach().cpu(),
            expected.detach(),
            rtol=1e-6,
            atol=1e-9,
            equal_nan=True,
            msg=lambda text: f"{name}: {text}",
        )
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True), name
    else:
        assert found == expected, name


def _contents(distribution: Distribution) -> dict[str, Any]:
    return {name: getattr(distribution, name) for name in distribution.arg_constraints}
