"""Early and late layers of a timm network: maps of the early ones are cached, training changes the late ones."""

import math
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# What a trunk raises that cannot be run in two parts.
_OTHER_STRUCTURE = (RuntimeError, TypeError, ValueError, AttributeError, IndexError, AssertionError)
_LAST_SHARE = 6  # of blocks over the same cells the last sixth is late
_MOST = 2 / 3  # of the layers that may be late


class LayerSplit:
    """The layers before one of them, and from it on, in the order in which the trunk calls them.

    The trunk itself runs both parts: the early one ends where the first late layer is called, and in the late one
    blanks take the place of what early layers give. So positions, class tokens and all else stay the trunk's affair.
    """

    def __init__(self, trunk: Any, early: list[str], late: list[str]) -> None:
        # By their names: batch norm shared by ranks takes the place of a layer.
        self._trunk, self._early, self._late = trunk, early, late
        self._blanks: dict[int, dict[str, Any]] = {}  # what early layers give, by the side of the image

    def late_parameters(self) -> Iterator[nn.Parameter]:
        """The weights of the late layers."""
        for name in self._late:
            yield from self._trunk.get_submodule(name).parameters()

    def early_state(self) -> dict[str, Tensor]:
        """All weights but those of the late layers."""
        late = tuple(f"{name}." for name in self._late)
        state = self._trunk.state_dict(keep_vars=True)
        return {name: value for name, value in state.items() if not name.startswith(late)}

    def early(self, pixels: Tensor) -> Tensor:
        """What the first late layer gets: a map or tokens, images first."""

        def stop(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            raise _Reached(inputs[0])

        hook = self._trunk.get_submodule(self._late[0]).register_forward_pre_hook(stop)
        try:
            self._trunk.forward_features(pixels)
        except _Reached as reached:
            return reached.map
        finally:
            hook.remove()
        raise AssertionError("the trunk did not call its late layers")

    def late(self, maps: Tensor, side: int) -> Any:
        """What the trunk's `forward_features` gives for square images of this side, from what `early` gave."""
        if side not in self._blanks:
            self._blanks[side] = self._find_blanks(side)
        if maps.dim() == 4 and getattr(self._trunk, "output_fmt", "NCHW") == "NCHW":
            maps = maps.contiguous(memory_format=torch.channels_last)
        with ExitStack() as stack:
            for name, blank in self._blanks[side].items():
                layer = self._trunk.get_submodule(name)
                layer.forward = partial(_expand, blank, len(maps), maps.device)
                stack.callback(delattr, layer, "forward")
            first = self._trunk.get_submodule(self._late[0])
            stack.callback(first.register_forward_pre_hook(lambda _, rest: (maps, *rest[1:])).remove)
            return self._trunk.forward_features(maps.new_zeros(()).expand(len(maps), 3, side, side))

    @torch.no_grad()
    def _find_blanks(self, side: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        place = next(self._trunk.parameters()).device
        with _in_eval(self._trunk), ExitStack() as stack:
            for name in self._early:
                hook = self._trunk.get_submodule(name).register_forward_hook(
                    lambda *call, name=name: found.update({name: _shapes(call[2])})
                )
                stack.callback(hook.remove)
            self.early(torch.zeros(1, 3, side, side, device=place))
        return found


class _Reached(Exception):
    """The first late layer was called."""

    def __init__(self, entered: Tensor) -> None:
        super().__init__()
        self.map = entered


class _Blank(NamedTuple):
    """A tensor of zeros without its numbers."""

    shape: torch.Size  # of one image
    dtype: torch.dtype


def _shapes(given: Any) -> Any:
    """What a layer gave for one image, with a blank for every tensor in it."""
    if isinstance(given, tuple | list):
        return [_shapes(one) for one in given]
    return _Blank(given.shape[1:], given.dtype) if isinstance(given, Tensor) else given


def _expand(blank: Any, images: int, device: torch.device, *_: Any, **__: Any) -> Any:
    """The same for so many images; zeros that are expanded take no memory."""
    if isinstance(blank, _Blank):
        return torch.zeros((), dtype=blank.dtype, device=device).expand(images, *blank.shape)
    if isinstance(blank, list):
        return tuple(_expand(one, images, device) for one in blank)
    return blank


def split_layers(trunk: Any) -> LayerSplit | None:
    """The split of a trunk, by the layers that it calls; None where two parts do not give what the whole gives.

    This is tried with images of 224 px, or of the size that the network was made for. Late are three of seven stages
    of EfficientNet and MobileNet, the last sixth of blocks over the same cells (as in a ViT), else all from the last
    layer that reduces the map.
    """
    own = trunk.pretrained_cfg.get("input_size", (3, 224, 224))[-1]
    return next(filter(None, (_try_split(trunk, side) for side in sorted({min(own, 224), own}))), None)


def _try_split(trunk: Any, side: int) -> LayerSplit | None:
    place = next(trunk.parameters()).device
    images = torch.linspace(-1, 1, 6 * side * side, device=place).sin().view(2, 3, side, side)
    with _in_eval(trunk), torch.no_grad(), suppress(*_OTHER_STRUCTURE):
        calls, features = _record(trunk, images)
        names = list(calls)
        first = _first_late(trunk, calls)
        split = LayerSplit(trunk, names[:first], names[first:])
        found = split.late(split.early(images), side)
        if first and torch.allclose(found, features, rtol=1e-3, atol=1e-4):
            return split
    return None


@contextmanager
def _in_eval(trunk: Any) -> Iterator[None]:
    training = [module for module in trunk.modules() if module.training]
    trunk.eval()
    try:
        yield
    finally:
        for module in training:  # batch norm may be frozen in a network that trains
            module.training = True


class _Call(NamedTuple):
    entered: int  # cells of the map or tokens
    left: int
    learns: bool


def _record(trunk: Any, images: Tensor) -> tuple[dict[str, _Call], Any]:
    """The layers that the trunk calls with a map, in order, and what it gives in the end."""
    calls: dict[str, _Call] = {}
    channels_are_last = getattr(trunk, "output_fmt", "NCHW") == "NHWC"

    def cells(map_: Any) -> int:
        map_ = map_[0] if isinstance(map_, tuple | list) else map_
        spatial = map_.shape[1:-1] if map_.dim() == 3 or channels_are_last else map_.shape[2:]
        return math.prod(spatial)

    def note(layer: nn.Module, entered: tuple[Any, ...], left: Any, *, name: str) -> None:
        if entered and isinstance(entered[0], Tensor):
            learns = any(True for _ in layer.parameters())
            calls[name] = _Call(cells(entered[0]), cells(left), learns)

    with ExitStack() as stack:
        for name, layer in _layers("", trunk):
            stack.callback(layer.register_forward_hook(partial(note, name=name)).remove)
        return calls, trunk.forward_features(images)


def _layers(prefix: str, parent: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers of a network; containers are opened."""
    for name, child in parent.named_children():
        if type(child) in (nn.Sequential, nn.ModuleList):
            yield from _layers(f"{prefix}{name}.", child)
        else:
            yield prefix + name, child


def _first_late(trunk: Any, calls: dict[str, _Call]) -> int:
    """The place of the first late layer among those that the trunk calls."""
    names = list(calls)
    if all(hasattr(trunk, name) for name in ("conv_stem", "bn1", "blocks")):  # EfficientNet, MobileNet
        stage = f"blocks.{4 * len(trunk.blocks) // 7}."
        return next(place for place, name in enumerate(names) if name.startswith(stage))
    blocks = [name for name in names if re.fullmatch(r"blocks\.\d+", name)]
    if not blocks or len({calls[name].entered for name in blocks}) > 1:
        learning = [place for place, call in enumerate(calls.values()) if call.learns]
        # VGG ends with a pooling, which has no weights.
        reducing = [
            place
            for place, call in enumerate(calls.values())
            if place and call.left < call.entered and place <= learning[-1]
        ]
        if reducing and len(names) - reducing[-1] <= _MOST * len(names):
            return reducing[-1]
        blocks = names
    return names.index(blocks[-max(1, len(blocks) // _LAST_SHARE)])
