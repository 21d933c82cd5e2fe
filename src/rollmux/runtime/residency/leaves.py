"""The tensors of a state: modules, optimizers, gradients, and containers of them, each under a name of its own.

Every tensor object comes once, under the first name that leads to it. What is not looked into is refused, not skipped.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from itertools import chain
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from rollmux.runtime.host.errors import Unfit

NUMBERS = (int, float, complex)
PLAIN = (*NUMBERS, str, bytes, bool, type(None), torch.dtype, torch.device)
PLAIN_TENSORS = (Tensor, nn.Parameter)
# Attributes in which libraries keep all or part of what a parameter holds, with whose they are and what moves it.
ELSEWHERE = {
    "ds_tensor": ("is partitioned by DeepSpeed", "call its engine's `offload_states()` and `reload_states()` instead"),
    "quant_state": ("is quantised by bitsandbytes", "move its module by `to()` instead"),
}
INT8 = "Int8Params"  # of bitsandbytes: after a forward its module has the scales, and the values by a second name


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor object."""

    name: str
    tensor: Tensor


def leaves(state: object) -> list[Leaf]:
    """All tensors of a state that hold anything; gradients last, where they are long runs of zeros if they are zero."""
    walk = _Walk()
    walk.through("", state)
    for leaf in [*walk.found.values()]:
        if leaf.tensor.is_leaf and leaf.tensor.grad is not None:
            walk.through(f"{leaf.name}.grad", leaf.tensor.grad)
    if len({leaf.name for leaf in walk.found.values()}) < len(walk.found):
        raise Unfit(f"several tensors of the state are called {_twice(walk.found.values())!r}; rename its keys")
    return [leaf for leaf in walk.found.values() if leaf.tensor.untyped_storage().nbytes()]


def _twice(found: Iterable[Leaf]) -> str:
    return next(name for name, count in Counter(leaf.name for leaf in found).items() if count > 1)


def names(state: object) -> dict[str, str]:
    """For each name that a module has for a tensor (tied ones have several), the tensor's name here."""
    walk = _Walk()
    walk.through("", state)
    return {
        _under(name, below): walk.found[id(tensor)].name
        for name, module in walk.modules.items()
        for below, tensor in chain(
            module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
        )
        if id(tensor) in walk.found
    }


def fill(state: object, known: Mapping[str, Callable[[], Tensor]]) -> Callable[[], None]:
    """Makes moments for optimizers that have made no step, and gradients that are not there yet, if they are known.

    Tensors that an optimizer nests deeper, or keeps under numbers, are for whoever builds it to make.
    Returns a function that takes away again what was made.
    """
    moments = _moments(known)
    undo = list[Callable[[], object]]()
    for name, optimizer in _optimizers("", state):
        for place, parameter in enumerate(_parameters(optimizer)):
            missing = moments.get(_under(name, f"state.{place}"))
            if missing and not optimizer.state.get(parameter):
                optimizer.state[parameter] = {key: blank() for key, blank in missing.items()}
                undo.append(partial(optimizer.state.pop, parameter))
        beside = cast("dict[object, object]", optimizer.state)
        for key, blank in moments.get(_under(name, "state"), {}).items():
            if key not in beside:
                beside[key] = blank()
                undo.append(partial(beside.pop, key))
    for leaf in leaves(state):
        tensor, made = leaf.tensor, known.get(f"{leaf.name}.grad")
        if made is not None and tensor.is_leaf and tensor.grad is None:
            gradient = made()
            if (gradient.shape, gradient.dtype) == (tensor.shape, tensor.dtype):
                tensor.grad = gradient
                undo.append(partial(setattr, tensor, "grad", None))

    def empty() -> None:
        for each in undo:
            each()

    return empty


def _moments(known: Mapping[str, Callable[[], Tensor]]) -> dict[str, dict[str, Callable[[], Tensor]]]:
    """By what they lie in. A key of digits is left out: it may be a number, a text or a place in a list."""
    found: dict[str, dict[str, Callable[[], Tensor]]] = {}
    for name, blank in known.items():
        above, _, key = name.rpartition(".")
        if not key.lstrip("-").isdecimal():
            found.setdefault(above, {})[key] = blank
    return found


def plain_number(state: object) -> str | None:
    """The name of a plain number that an optimizer counts in, or the like: it is no tensor, so nobody keeps it."""
    for name, optimizer in _optimizers("", state):
        for place, (key, held) in enumerate(cast("dict[object, object]", optimizer.state).items()):
            below = _number_in(held)
            if below is not None:
                return _under(name, f"state.{place if isinstance(key, Tensor) else key}{below}")
    return None


def _number_in(value: object) -> str | None:
    """Where in `value` a plain number is, however deep: the end of its name. Each offload asks: common types first."""
    if isinstance(value, (dict, Mapping)):
        items: Iterable[tuple[object, object]] = value.items()
    elif isinstance(value, NUMBERS):
        return ""
    elif isinstance(value, (Tensor, nn.Module, *PLAIN)):
        return None
    elif isinstance(value, Optimizer):
        within = plain_number(value)
        return f".{within}" if within else None
    else:
        items = _items("its state", value)
    for key, item in items:
        if type(item) is not Tensor and (below := _number_in(item)) is not None:
            return f".{key}{below}"
    return None


def _optimizers(name: str, value: object) -> Iterator[tuple[str, Optimizer]]:
    if isinstance(value, Optimizer):
        yield name, value
    elif not isinstance(value, (*PLAIN, Tensor, nn.Module)):
        for below, item in _items(name, value):
            yield from _optimizers(_under(name, below), item)


class _Walk:
    """Goes through a state. Each offload does, so there are no nested generators: they took half as long again."""

    def __init__(self) -> None:
        self.found = dict[int, Leaf]()
        self.modules = dict[str, nn.Module]()  # those that lie in no other module
        self._modules = dict[int, nn.Module]()

    def through(self, name: str, value: object) -> None:
        if isinstance(value, Tensor):
            self._tensor(name, value)
        elif isinstance(value, nn.Module):
            self.modules[name] = value
            self._module(name, value)
        elif isinstance(value, Optimizer):
            self._optimizer(name, value)
        elif not isinstance(value, PLAIN):
            for below, item in _items(name, value):
                self.through(_under(name, below), item)

    def meet(self, name: str, tensor: Tensor) -> None:
        if id(tensor) not in self.found:
            _check(name, tensor)
            self.found[id(tensor)] = Leaf(name, tensor)

    def _tensor(self, name: str, tensor: Tensor) -> None:
        self.meet(name, tensor)
        if tensor._base is not None:  # a view holds on to what it was made from
            self.meet(f"{name}.base", tensor._base)

    def _module(self, name: str, module: nn.Module) -> None:
        if id(module) in self._modules:
            return
        self._modules[id(module)] = module  # kept alive: else another might get its id
        for tensors in (module._parameters, module._buffers):
            for below, tensor in tensors.items():
                if tensor is not None:
                    self.through(_under(name, below), tensor)
        for below, part in module._modules.items():
            if part is not None:
                self._module(_under(name, below), part)

    def _optimizer(self, name: str, optimizer: Optimizer) -> None:
        parameters = _parameters(optimizer)
        for place, parameter in enumerate(parameters):
            self._tensor(_under(name, f"params.{place}"), parameter)
        met = 0
        for place, parameter in enumerate(parameters):
            if parameter in optimizer.state:
                met += 1
                self.through(_under(name, f"state.{place}"), optimizer.state[parameter])
        if met != len(optimizer.state):
            self._beside(_under(name, "state"), optimizer, {id(each) for each in parameters})

    def _beside(self, name: str, optimizer: Optimizer, parameters: set[int]) -> None:
        """What an optimizer keeps that belongs to none of its parameters."""
        for key, value in cast("dict[object, object]", optimizer.state).items():
            if id(key) in parameters:
                continue
            if not isinstance(key, str | int):
                kind = f"{name} has an entry for a {type(key).__qualname__} that is none of the optimizer's parameters"
                raise Unfit(f"{kind}; take it out, or name it")
            self.through(_under(name, str(key)), value)


def _items(name: str, value: object) -> Iterator[tuple[str, object]]:
    """What a container holds."""
    if isinstance(value, Mapping):
        yield from ((str(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield from ((str(place), item) for place, item in enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((each.name, getattr(value, each.name)) for each in fields(value))
    else:
        remedy = "give its tensors in a dict, or the module or optimizer itself"
        raise Unfit(f"{name or 'the state'} is a {type(value).__qualname__}, which is not looked into; {remedy}")


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _under(name: str, below: str) -> str:
    return f"{name}.{below}" if name else below


def _check(name: str, tensor: Tensor) -> None:
    is_plain = type(tensor) in PLAIN_TENSORS
    if not is_plain and is_lazy(tensor):
        raise Unfit(f"{name or 'the tensor'} has no shape yet: let its module see an input first")
    if tensor.is_conj() or tensor.is_neg():
        raise Unfit(f"{name or 'the tensor'} is a view that is yet to be negated; give its `clone()`")
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        kind = f"{tensor.layout} on {tensor.device}"
        raise Unfit(f"{name or 'the tensor'} is {kind}: only dense tensors with data are held; make it dense")
    if type(tensor).__name__ == INT8:
        remedy = "move its module by `to()` instead"
        raise Unfit(f"{name or 'the tensor'} is quantised by bitsandbytes, and its scales would stay; {remedy}")
    wraps: bool = not is_plain and is_traceable_wrapper_subclass(tensor)
    if wraps:
        remedy = "give the tensors inside it, such as `to_local()` of a DTensor of tensor parallelism"
        other = "what `fully_shard` made keeps views of them: move it by its own `to()` instead"
        kind = f"a {type(tensor).__qualname__}, which wraps other tensors"
        raise Unfit(f"{name or 'the tensor'} is {kind}; {remedy}; {other}")
    for attribute, (state, remedy) in ELSEWHERE.items():
        if getattr(tensor, attribute, None) is not None:
            raise Unfit(f"{name or 'the tensor'} {state}, and its `{attribute}` would stay where it is; {remedy}")
