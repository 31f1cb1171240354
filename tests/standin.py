"""A device without a GPU: tensors in a place of their own that compute as the CPU does and never mix with its tensors.

Torch sees a device named `standin`, so that `device=`, `.to`, `.cpu` and `.device` mean what they mean with a GPU. Each
of its tensors wraps one on the CPU, where all operations are done: equal programs give equal bytes.
"""

from collections import Counter
from functools import cache

import torch
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "standin"
aten = torch.ops.aten
COPIES = {aten._to_copy, aten.copy_, aten._copy_from}  # between places
# Operations whose result's shape or Python value depends on the numbers in a tensor: a GPU's are waited for.
READS = {"_local_scalar_dense", "nonzero", "bincount", "masked_select", "_unique2", "unique_dim", "equal"}
LIKE = torch.Tag.pointwise  # operations that take a number of the CPU's, as a tensor without axes, beside a GPU's


def dropout(input, p, train):
    """Drop out as torch does on the CPU, where it does not ask for the fused form."""
    noise = torch.empty_like(input).bernoulli_(1 - p).div_(1 - p)
    return input * noise, noise.bool()


FORMS = {aten.native_dropout.default: dropout}  # of operations that a CPU computes by others
# For other devices torch would resize an empty tensor, or compute the gradient in another way than the CPU.
OWN = [aten.arange.default, aten.arange.start, aten.arange.start_step, aten.silu_backward.default]
LIBRARIES = []  # what they register ends with them
waits: Counter[str] = Counter()  # how often each operation would have waited for the device
moved: list[torch.Tensor] = []  # what was copied from the CPU to the device; kept alive, so that addresses are theirs


class StandIn(torch.Tensor):
    """Tensor on the device."""

    @staticmethod
    def __new__(cls, inner):
        assert type(inner) is torch.Tensor, type(inner)
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"StandIn({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return computed(func, args, kwargs or {})


class Place(torch.utils.backend_registration._DummyBackendModule):
    """What torch asks of a device's module."""

    def get_amp_supported_dtype(self):
        return [torch.bfloat16]

    def get_rng_state(self, device=None):
        """Return an empty state, as random numbers are the CPU's; `torch.random.fork_rng` asks for it."""
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state, device=None):
        assert not len(state)


@cache
def device():
    """Make the device known to torch, once in a process, and return its name."""
    _setup_privateuseone_for_python_backend(NAME, Place())
    fallback, ranges = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    fallback.fallback(lambda func, *args, **kwargs: computed(func, args, kwargs), "PrivateUse1")
    for func in OWN:
        ranges.impl(func, lambda *args, func=func, **kwargs: computed(func, args, kwargs), "PrivateUse1")
    LIBRARIES.extend((fallback, ranges))
    return NAME


def computed(func, args, kwargs):
    """Do an operation on the CPU; refuse tensors of both places; count what a GPU would be waited for."""
    leaves, tree = tree_flatten((args, kwargs))
    target = next((leaf for leaf in leaves if isinstance(leaf, torch.device)), None)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    inside = [one for one in tensors if isinstance(one, StandIn)]
    name = func.overloadpacket.__name__
    placed = target.type == NAME if target else bool(inside)
    if func.overloadpacket in COPIES:
        aim = placed if target or not tensors[1:] else isinstance(tensors[0], StandIn)
        source = tensors[0] if target or not tensors[1:] else tensors[1]
        if isinstance(source, StandIn) != aim and not (aim and (kwargs.get("non_blocking") or args[2:3] == (True,))):
            waits["to the device" if aim else "to the CPU"] += 1
        if aim and not isinstance(source, StandIn):
            moved.append(source)
        placed = aim
    elif inside:
        outside = [one for one in tensors if not isinstance(one, StandIn)]
        if any(one.ndim or LIKE not in func.tags for one in outside):
            shapes = ", ".join(f"{one.dtype} {tuple(one.shape)}" for one in outside)
            raise RuntimeError(f"{name} of tensors on {NAME} has tensors on cpu beside them: {shapes}.")
        masked = name.startswith("index") and any(one.dtype == torch.bool for one in inside[1:])
        if masked or name in READS:
            waits[name] += 1
    leaves = [leaf.inner if isinstance(leaf, StandIn) else leaf for leaf in leaves]
    leaves = [torch.device("cpu") if isinstance(leaf, torch.device) else leaf for leaf in leaves]
    plain_args, plain_kwargs = tree_unflatten(leaves, tree)
    with torch.utils._python_dispatch._disable_current_modes():
        result = FORMS.get(func, func)(*plain_args, **plain_kwargs)
    owners = {id(one.inner): one for one in inside}  # of what is changed in place
    if not placed:
        return result
    return tree_map_only(torch.Tensor, lambda one: owners.get(id(one)) if id(one) in owners else StandIn(one), result)
