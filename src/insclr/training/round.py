"""One round of training, from its first step or its last checkpoint to its end."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from insclr.checkpoint import beside, load_latest, save_checkpoint
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
from insclr.training.loss import LossValue, contrastive_loss
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
    optimizer = _optimizer(recipe, network)
    # Half-precision gradients underflow without scaling; bf16 and fp32 need none.
    scaler = torch.amp.GradScaler("cuda", enabled=recipe.precision == "fp16" and torch.cuda.is_available())
    step, steps, spent = _resume(this, optimizer)
    began = time.monotonic() - spent

    title = f"round {this.number} ({recipe.method.name} {recipe.method.variant}, {_LAYERS[recipe.train]})"
    with progress_bar(title, steps, done=step) as bar:
        batches = this.source.batches(step, recipe.steps)
        while step < steps:
            # Everything random in a step follows from the seed and the step alone: nothing to store or replay.
            torch.manual_seed(step_seed(this.seed, this.number, step))
            factor = rate_factor(recipe, step, steps)
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
            batch = next(batches)
            value, pairs = _loss(this, batch, step)
            if not torch.isfinite(value.loss):
                raise UserError(_not_a_number(this, step, optimizer))
            _update(this, value.loss, optimizer, scaler)
            step += 1

            bar.advance(1, **_log(this, step, value, pairs, batch, factor))
            planned = step == _TIMED_STEPS and this.seconds > 0
            if planned:
                pace = (time.monotonic() - began) / step
                steps = this.ranks.from_first(max(step, min(recipe.steps, int(this.seconds / pace))))
                this.tracker.event(this.number, "planned", step=step, steps=steps, seconds_per_step=pace)
            if step % this.checkpoint_every == 0 or planned or step >= steps:
                _checkpoint(this, step, steps, time.monotonic() - began, optimizer)
    return Trained(step, time.monotonic() - began)


def step_seed(seed: int, number: int, step: int) -> int:
    """One number for one step of one round of one run."""
    return (seed * 1_000_003 + number) * 1_000_000_007 + step


def _loss(this: Round, batch: Batch, step: int) -> tuple[LossValue, Pairs]:
    """The method labels the pairs, the loss weighs them."""
    generator = torch.Generator().manual_seed(step_seed(this.seed, this.number, step))
    pairs = this.method.label(batch, step, generator)
    value = contrastive_loss(
        batch.augmented,
        pairs,
        batch=None if batch.whole is None else batch.whole.augmented.flatten(0, 1),
        margin=this.margin,
        normalise=this.recipe.loss.normalise,
    )
    return value, pairs


def _update(
    this: Round, loss: Tensor, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> None:
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss * this.ranks.weight(this.recipe.tuples)).backward()
    if this.recipe.clip:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(this.network.parameters(), this.recipe.clip)
    scaler.step(optimizer)
    scaler.update()


def _optimizer(recipe: RoundRecipe, network: DescriptorNetwork) -> torch.optim.Adam:
    fc = network.fc
    of_fc = fc.trained() if isinstance(fc, RefinedLinear) else [] if fc is None else list(fc.parameters())
    groups: list[dict[str, Any]] = [{"params": of_fc, "base_lr": recipe.fc_lr or recipe.lr}]
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


def _precision(this: Round, batch: Batch, pairs: Pairs) -> dict[str, float]:
    """Mean share of right ones among the pseudo positives of a tuple, where labels were given."""
    if this.instances is None:
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


def _log(
    this: Round, step: int, value: LossValue, pairs: Pairs, batch: Batch, factor: float
) -> dict[str, str]:
    """Add up the numbers of the last steps; write their means every so often, and show the newest."""
    mined = 0.0 if pairs.mined is None else float(pairs.mined.sum()) / len(pairs.mined)
    numbers = {name: float(number.detach()) for name, number in vars(value).items()}
    numbers |= {"bank_positives": mined, "lr_factor": factor} | _precision(this, batch, pairs)
    tuples = len(batch.ids)
    for name, number in numbers.items():
        this.sums[name] = this.sums.get(name, 0.0) + number * tuples
        this.sums[f"#{name}"] = this.sums.get(f"#{name}", 0.0) + tuples
    if step % _LOG_EVERY == 0:
        _collect_sums(this)
        means = {name: this.sums[name] / this.sums[f"#{name}"] for name in this.sums if name[0] != "#"}
        this.tracker.step(this.number, step, **means)
        this.sums.clear()
    positives = numbers["batch_positives"] + mined
    return {"loss": f"{numbers['loss']:.3f}", "positives": f"{positives:.1f}"}


def _collect_sums(this: Round) -> None:
    """Move the sums of all ranks to the first one."""
    if this.ranks.alone:
        return
    total: dict[str, float] = {}
    for sums in this.ranks.collect(this.sums):
        for name, value in sums.items():
            total[name] = total.get(name, 0.0) + value
    this.sums = total if this.ranks.first else {}


def _checkpoint(this: Round, step: int, steps: int, spent: float, optimizer: torch.optim.Optimizer) -> None:
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
        "method": this.method.state_dict(),
        "sums": dict(this.sums),
    }
    save_checkpoint(this.folder, step, state, this.keep_checkpoints, this.method.files())


def _resume(this: Round, optimizer: torch.optim.Optimizer) -> tuple[int, int, float]:
    """(steps done, steps to do, seconds spent): from the newest checkpoint, else from the beginning."""
    state = load_latest(this.folder)
    if state is None:
        return 0, this.recipe.steps, 0.0
    this.network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    copies = {name: beside(this.folder, state["step"], name) for name in this.method.files()}
    this.method.load_state_dict(state["method"], copies, this.ranks)
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
