"""One round of training, from its first step or its last checkpoint to its end."""

import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from insclr.checkpoint import copies_beside, load_latest, save_checkpoint
from insclr.errors import UserError
from insclr.methods.batch import Batch
from insclr.methods.method import Method
from insclr.methods.pairs import Pairs
from insclr.mining.precision import mean_precision
from insclr.model.network import DescriptorNetwork
from insclr.model.refined import RefinedLinear
from insclr.progress import progress_bar
from insclr.ranks import Ranks
from insclr.recipe import RoundRecipe
from insclr.tracking import Tracker
from insclr.training.ema_teacher import EmaTeacher
from insclr.training.loss import contrastive_loss, softmax_loss
from insclr.training.schedule import rate_factor
from insclr.training.sources import Source

_TIMED_STEPS = 8  # so many steps tell how fast a round goes
_LOG_EVERY = 10
_LAYERS = {"all": "all layers", "late": "late layers", "fc": "fc"}


@dataclass
class Round:
    """Everything one round works with: a feature source, a method, a loss, and where it writes."""

    number: int  # from 1
    recipe: RoundRecipe
    network: DescriptorNetwork
    source: Source
    method: Method
    margin: float  # of the loss
    folder: Path  # its checkpoints
    tracker: Tracker
    seed: int
    checkpoint_every: int = 500
    keep_checkpoints: int = 2
    seconds: float = 0.0  # time budget; 0 = none
    instances: Tensor | None = None  # (N,) true instance of each image, -1 unknown: for logging only
    ranks: Ranks = field(default_factory=Ranks)
    sums: dict[str, float] = field(default_factory=dict)  # of what was logged since the last record


@dataclass(frozen=True)
class Trained:
    """What a round took."""

    steps: int
    seconds: float


def train_round(this: Round) -> Trained:
    """Train until the round's steps or its time are used up."""
    recipe, network = this.recipe, this.network
    network.frozen_batch_norm = recipe.batch_norm == "frozen"
    optimizer = _optimizer(recipe, network, this.method.parameters())
    # Half-precision gradients underflow without scaling; bf16 and fp32 need none.
    scaler = torch.amp.GradScaler("cuda", enabled=recipe.precision == "fp16" and torch.cuda.is_available())
    if this.method.needs.ema_decay:
        this.source.teacher = EmaTeacher(network, this.method.needs.ema_decay)
    step, steps, spent = _resume(this, optimizer, scaler)
    began = time.monotonic() - spent

    title = f"round {this.number} ({recipe.method.title}, {_LAYERS[recipe.train]})"
    with progress_bar(title, steps, done=step) as bar:
        batches, epoch_end = _begin_epoch(this, step, optimizer)
        while step < steps:
            if step == epoch_end:
                batches.close()
                batches, epoch_end = _begin_epoch(this, step, optimizer)
            # Everything random in a step follows from the seed and the step alone: nothing to store or replay.
            torch.manual_seed(step_seed(this.seed, this.number, step))
            factor = rate_factor(recipe, step, steps)
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
            batch = next(batches)
            value = _loss(this, batch, step)
            if not torch.isfinite(value.loss):
                raise UserError(_not_a_number(this, step, optimizer))
            _update(this, value, optimizer, scaler)
            step += 1

            bar.advance(1, **_log(this, step, value, batch, factor))
            planned = step == _TIMED_STEPS and this.seconds > 0
            if planned:
                pace = (time.monotonic() - began) / step
                steps = this.ranks.from_first(max(step, min(recipe.steps, int(this.seconds / pace))))
                bar.expect(steps)
                this.tracker.event(this.number, "planned", step=step, steps=steps, seconds_per_step=pace)
            if step % this.checkpoint_every == 0 or planned or step >= steps:
                _checkpoint(this, step, steps, time.monotonic() - began, optimizer, scaler)
    return Trained(step, time.monotonic() - began)


def step_seed(seed: int, number: int, step: int) -> int:
    """One number for one step of one round of one run."""
    return (seed * 1_000_003 + number) * 1_000_000_007 + step


@dataclass(frozen=True)
class _Value:
    """The loss of a step, with gradient, and the numbers that it was made of, for the log."""

    loss: Tensor
    numbers: Mapping[str, Tensor]
    weight: float  # of this rank's loss: gradients are averaged over ranks
    pairs: Pairs | None = None  # where the method labels pairs


def _begin_epoch(
    this: Round, step: int, optimizer: torch.optim.Optimizer
) -> tuple[Generator[Batch, None, None], int]:
    """The batches from `step` on, and the step before which the method wants to see the collection again."""
    epoch = this.method.epoch_steps
    if not epoch:
        return this.source.batches(step, this.recipe.steps), this.recipe.steps
    if step and step % epoch == 0:
        for parameter in this.method.begin_epoch(step // epoch, this.source.pooled(), this.ranks):
            optimizer.state.pop(parameter, None)
    end = min(this.recipe.steps, (step // epoch + 1) * epoch)
    return this.source.batches(step, end), end


def _loss(this: Round, batch: Batch, step: int) -> _Value:
    """The method labels the pairs and the loss weighs them, unless the method has a loss of its own."""
    generator = torch.Generator().manual_seed(step_seed(this.seed, this.number, step))
    own = this.method.loss(batch, step, generator)
    if own is not None:  # of the whole batch, on every rank
        return _Value(own.loss, {"loss": own.loss, **own.numbers}, weight=1.0)
    pairs = this.method.label(batch, step, generator)
    whole = None if batch.whole is None else batch.whole.augmented.flatten(0, 1)
    settings = this.recipe.loss
    if settings.form == "softmax":
        value = softmax_loss(batch.augmented, pairs, batch=whole, temperature=settings.temperature)
    else:
        value = contrastive_loss(
            batch.augmented, pairs, batch=whole, margin=this.margin, normalise=settings.normalise
        )
    return _Value(value.loss, vars(value), this.ranks.weight(this.recipe.tuples), pairs)


def _update(
    this: Round, value: _Value, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> None:
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(value.loss * value.weight).backward()
    own = this.method.parameters()
    average_gradients(own if this.source.averages else [*this.network.parameters(), *own], this.ranks)
    if this.recipe.clip:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([*this.network.parameters(), *own], this.recipe.clip)
    scaler.step(optimizer)
    scaler.update()
    if this.source.teacher is not None:
        this.source.teacher.update()


def average_gradients(parameters: list[nn.Parameter], ranks: Ranks) -> None:
    """Give every rank the mean of all ranks' gradients, in one message."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if ranks.alone or not gradients:
        return
    mean = ranks.sum(torch.cat([one.flatten() for one in gradients])) / ranks.world
    for one, part in zip(gradients, mean.split([one.numel() for one in gradients]), strict=True):
        one.copy_(part.view_as(one))


def _optimizer(
    recipe: RoundRecipe, network: DescriptorNetwork, of_method: list[nn.Parameter]
) -> torch.optim.Adam:
    fc = network.fc
    of_fc = fc.trained() if isinstance(fc, RefinedLinear) else [] if fc is None else list(fc.parameters())
    groups: list[dict[str, Any]] = [
        {"params": params, "base_lr": recipe.fc_lr or recipe.lr} for params in (of_fc, of_method)
    ]
    if recipe.train != "fc":
        layers = (
            network.backbone.parameters() if recipe.train == "all" else network.backbone.late_parameters()
        )
        groups.append({"params": [*layers, *network.pooling.parameters()], "base_lr": recipe.lr})
    groups = [group for group in groups if group["params"]]
    network.requires_grad_(False)
    for group in groups:
        for parameter in group["params"]:
            parameter.requires_grad_(True)
    return torch.optim.Adam(groups, lr=recipe.lr, weight_decay=recipe.weight_decay)


def _precision(this: Round, batch: Batch, pairs: Pairs | None) -> dict[str, float]:
    """Mean share of right ones among the pseudo positives of a tuple, where labels were given."""
    if this.instances is None or pairs is None:
        return {}
    truth = this.instances.to(batch.ids.device)
    anchors, members, chosen = batch.ids[:, 0], batch.ids[:, 1:], pairs.query[:, 1:]
    shares = {
        "nn_precision": mean_precision(truth, anchors, members, torch.ones_like(chosen)),
        "batch_precision": mean_precision(truth, anchors, members, chosen),
    }
    if pairs.mined_ids is not None and pairs.mined is not None:
        shares["memory_precision"] = mean_precision(truth, anchors, pairs.mined_ids, pairs.mined)
    return {name: share for name, share in shares.items() if share is not None}


def _log(this: Round, step: int, value: _Value, batch: Batch, factor: float) -> dict[str, str]:
    """Add up the numbers of the last steps; write their means every so often, and show the newest."""
    numbers = {name: float(number.detach()) for name, number in value.numbers.items()}
    numbers |= {"lr_factor": factor} | _precision(this, batch, value.pairs)
    if value.pairs is not None:
        mined = value.pairs.mined
        numbers["bank_positives"] = 0.0 if mined is None else float(mined.sum()) / len(mined)
    tuples = len(batch.ids)
    for name, number in numbers.items():
        this.sums[name] = this.sums.get(name, 0.0) + number * tuples
        this.sums[f"#{name}"] = this.sums.get(f"#{name}", 0.0) + tuples
    if step % _LOG_EVERY == 0:
        _collect_sums(this)
        means = {name: this.sums[name] / this.sums[f"#{name}"] for name in this.sums if name[0] != "#"}
        this.tracker.step(this.number, step, **means)
        this.sums.clear()
    shown = {"loss": f"{numbers['loss']:.3f}"}
    if value.pairs is not None:
        shown["positives"] = f"{numbers['batch_positives'] + numbers['bank_positives']:.1f}"
    return shown


def _collect_sums(this: Round) -> None:
    """Move the sums of all ranks to the first one."""
    if this.ranks.alone:
        return
    total: dict[str, float] = {}
    for sums in this.ranks.collect(this.sums):
        for name, value in sums.items():
            total[name] = total.get(name, 0.0) + value
    this.sums = total if this.ranks.first else {}


def _checkpoint(
    this: Round,
    step: int,
    steps: int,
    spent: float,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> None:
    _collect_sums(this)
    if not this.ranks.first:
        return
    this.tracker.sync()
    state = {
        "step": step,
        "steps": steps,
        "spent": spent,
        "network": this.network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),  # empty where nothing is scaled
        "method": this.method.state_dict(),
        "sums": dict(this.sums),
    }
    if this.source.teacher is not None:
        state["teacher"] = this.source.teacher.state_dict()
    save_checkpoint(this.folder, step, state, this.keep_checkpoints, this.method.files())


def _resume(
    this: Round, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> tuple[int, int, float]:
    """(steps done, steps to do, seconds spent): from the newest checkpoint, else from the beginning."""
    state = load_latest(this.folder)
    if state is None:
        return 0, this.recipe.steps, 0.0
    this.network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    if state.get("scaler"):
        scaler.load_state_dict(state["scaler"])
    # Those that were written, not those that this run would write: it may have other ranks.
    this.method.load_state_dict(state["method"], copies_beside(this.folder, state["step"]), this.ranks)
    if this.source.teacher is not None:
        this.source.teacher.load_state_dict(
            state["teacher"] if "teacher" in state else state["momentum"]
        )  # the old name
    this.sums = dict(state["sums"]) if this.ranks.first else {}
    return state["step"], state["steps"], state["spent"]


def _not_a_number(this: Round, step: int, optimizer: torch.optim.Optimizer) -> str:
    where = f"The loss is not a number in round {this.number}, step {step}"
    if step == 0:
        return (
            f"{where}, before anything was learned in it: the network gives descriptors that are not finite. "
            "Check the weights it starts from (--weights), or try the embedded backbone."
        )
    return (
        f"{where}. Lower the learning rate (now {optimizer.param_groups[-1]['lr']:.1e}; for example "
        f"--set rounds.{this.number - 1}.lr={this.recipe.lr / 10:.0e}) or clip the gradient (--set rounds.clip=1), "
        "and start a new run. Checkpoints written before are whole."
    )
