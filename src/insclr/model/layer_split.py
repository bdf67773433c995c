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
        self._blanks: dict[
            object, dict[str, Any]
        ] = {}  # what early layers give, by device and side of the images

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
        if (key := (maps.device, side)) not in self._blanks:
            self._blanks[key] = self._find_blanks(maps.new_zeros(1, 3, side, side))
        if maps.dim() == 4 and getattr(self._trunk, "output_fmt", "NCHW") == "NCHW":
            maps = maps.contiguous(memory_format=torch.channels_last)
        with ExitStack() as stack:
            for name, blank in self._blanks[key].items():
                layer = self._trunk.get_submodule(name)
                layer.forward = partial(_blank, blank, len(maps))
                stack.callback(delattr, layer, "forward")
            first = self._trunk.get_submodule(self._late[0])
            stack.callback(first.register_forward_pre_hook(lambda _, rest: (maps, *rest[1:])).remove)
            return self._trunk.forward_features(maps.new_zeros(()).expand(len(maps), 3, side, side))

    @torch.no_grad()
    def _find_blanks(self, image: Tensor) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with _in_eval(self._trunk), ExitStack() as stack:
            for name in self._early:
                layer = self._trunk.get_submodule(name)
                note = partial(lambda name, *call: found.update({name: _blank(call[2], 1)}), name)
                stack.callback(layer.register_forward_hook(note).remove)
            self.early(image)
        return found


class _Reached(Exception):
    """The first late layer was called."""

    def __init__(self, entered: Tensor) -> None:
        super().__init__()
        self.map = entered


def _blank(given: Any, images: int, *_: Any, **__: Any) -> Any:
    """What a layer gave, for so many images and with zeros in every tensor; these take no memory."""
    if isinstance(given, Tensor):
        return given.new_zeros(()).expand(images, *given.shape[1:])
    return tuple(_blank(one, images) for one in given) if isinstance(given, tuple | list) else given


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


def _record(trunk: Any, images: Tensor) -> tuple[dict[str, _Call], Tensor]:
    """The layers that the trunk calls with a map, in order, and what it gives in the end."""
    calls: dict[str, _Call] = {}
    channels_are_last = getattr(trunk, "output_fmt", "NCHW") == "NHWC"

    def count_cells(map_: Tensor) -> int:
        return math.prod(map_.shape[1:-1] if map_.dim() == 3 or channels_are_last else map_.shape[2:])

    def note(name: str, layer: nn.Module, entered: tuple[Any, ...], left: Any) -> None:
        left = left[0] if isinstance(left, tuple | list) else left
        if entered and isinstance(entered[0], Tensor):
            learns = any(True for _ in layer.parameters())
            calls[name] = _Call(count_cells(entered[0]), count_cells(left), learns)

    with ExitStack() as stack:
        for name, layer in _open_containers("", trunk):
            stack.callback(layer.register_forward_hook(partial(note, name)).remove)
        features: Tensor = trunk.forward_features(images)
    return calls, features


def _open_containers(prefix: str, parent: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers of a network, by their names."""
    for name, child in parent.named_children():
        if type(child) in (nn.Sequential, nn.ModuleList):
            yield from _open_containers(f"{prefix}{name}.", child)
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
        # VGG ends with a pooling, which has no weights.
        last = max(place for place, name in enumerate(names) if calls[name].learns)
        reducing = (at for at in range(last, 0, -1) if calls[names[at]].left < calls[names[at]].entered)
        first = next(reducing, 0)
        if len(names) - first <= _MOST * len(names):
            return first
        blocks = names
    return names.index(blocks[-max(1, len(blocks) // _LAST_SHARE)])
