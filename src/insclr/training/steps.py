"""The steps of a round: batch, loss, update, log, checkpoint, until the steps or the time are used up."""

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from insclr.checkpoint import copies_beside, load_latest, save_checkpoint
from insclr.errors import UserError
from insclr.methods.method import Batch, Method, Pairs
from insclr.model.network import DescriptorNetwork
from insclr.progress import progress_bar
from insclr.ranks import Ranks
from insclr.recipe import RoundRecipe
from insclr.tracking import Tracker
from insclr.training.loss import contrastive_loss, softmax_loss
from insclr.training.optimizer import EmaTeacher, average_gradients, create_optimizer, rate_factor
from insclr.training.run_log import StepLog
from insclr.training.sources import Source

_TIMED_STEPS = 8  # after so many steps the pace of a round is known
_LAYERS = {"all": "all layers", "late": "late layers", "fc": "fc"}


@dataclass(frozen=True)
class Round:
    """Everything the steps of a round work with: a feature source, a method, a loss, and where it writes."""

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
    clock: Callable[[], float] = time.monotonic


def train_steps(this: Round) -> tuple[int, float]:
    """Train until the round's steps or its time are used up; the number of steps and seconds that took."""
    recipe, network, method, source = this.recipe, this.network, this.method, this.source
    network.frozen_batch_norm = recipe.batch_norm == "frozen"
    of_method = method.parameters()
    optimizer = create_optimizer(recipe, network, of_method)
    # Half-precision gradients underflow without scaling; bf16 and fp32 need none.
    scaler = torch.amp.GradScaler("cuda", enabled=recipe.precision == "fp16" and torch.cuda.is_available())
    if method.needs.ema_decay:
        source.teacher = EmaTeacher(network, method.needs.ema_decay)
    log = StepLog(this.tracker, this.number, this.instances, this.ranks)
    step, steps, spent = _resume(this, optimizer, scaler, log)
    began = this.clock() - spent

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
            loss, weight, pairs, numbers = _compute_loss(this, batch, step)
            if not torch.isfinite(loss):
                raise UserError(_not_a_number(this, step, optimizer.param_groups[-1]["lr"]))

            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss * weight).backward()
            trained = [*network.parameters(), *of_method]
            average_gradients(of_method if source.averages else trained, this.ranks)
            if recipe.clip:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(trained, recipe.clip)
            scaler.step(optimizer)
            scaler.update()
            if source.teacher is not None:
                source.teacher.update()
            step += 1

            bar.advance(1, **log.add(step, batch, pairs, {**numbers, "lr_factor": factor}))
            is_planned = step == _TIMED_STEPS and this.seconds > 0
            if is_planned:
                pace = (this.clock() - began) / step
                steps = this.ranks.from_first(max(step, min(recipe.steps, int(this.seconds / pace))))
                bar.expect(steps)
                this.tracker.event(this.number, "planned", step=step, steps=steps, seconds_per_step=pace)
            if step % this.checkpoint_every == 0 or is_planned or step >= steps:
                log.collect()
                progress = {"step": step, "steps": steps, "spent": this.clock() - began, "sums": log.sums}
                _save_checkpoint(this, optimizer, scaler, progress)
    return step, this.clock() - began


def step_seed(seed: int, number: int, step: int) -> int:
    """One number for one step of one round of one run."""
    return (seed * 1_000_003 + number) * 1_000_000_007 + step


def _compute_loss(
    this: Round, batch: Batch, step: int
) -> tuple[Tensor, float, Pairs | None, dict[str, float]]:
    """The loss with gradient, its weight (gradients are averaged over ranks), the labelled pairs, numbers to log."""
    generator = torch.Generator().manual_seed(step_seed(this.seed, this.number, step))
    own = this.method.loss(batch, step, generator)
    if own is not None:  # of the whole batch, on every rank
        numbers = {"loss": own.loss, **own.numbers}
        return own.loss, 1.0, None, {name: float(one.detach()) for name, one in numbers.items()}
    pairs = this.method.label(batch, step, generator)
    whole = None if batch.whole is None else batch.whole.augmented.flatten(0, 1)
    settings = this.recipe.loss
    if settings.form == "softmax":
        value = softmax_loss(batch.augmented, pairs, batch=whole, temperature=settings.temperature)
    else:
        value = contrastive_loss(
            batch.augmented, pairs, batch=whole, margin=this.margin, normalise=settings.normalise
        )
    weight = this.ranks.weight(this.recipe.tuples)
    return value.loss, weight, pairs, {name: float(one.detach()) for name, one in vars(value).items()}


def _begin_epoch(
    this: Round, step: int, optimizer: torch.optim.Optimizer
) -> tuple[Generator[Batch, None, None], int]:
    """The batches from `step` on, and the step before which the method wants to see the collection again."""
    epoch = this.method.epoch_steps
    if not epoch:
        return this.source.batches(step, this.recipe.steps), this.recipe.steps
    if step and step % epoch == 0:
        for parameter in this.method.begin_epoch(step // epoch, this.source.pool_features(), this.ranks):
            optimizer.state.pop(parameter, None)
    end = min(this.recipe.steps, (step // epoch + 1) * epoch)
    return this.source.batches(step, end), end


def _save_checkpoint(
    this: Round, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, progress: dict[str, Any]
) -> None:
    if not this.ranks.first:
        return
    this.tracker.sync()
    state = {
        **progress,
        "network": this.network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),  # empty where nothing is scaled
        "method": this.method.state_dict(),
    }
    if this.source.teacher is not None:
        state["teacher"] = this.source.teacher.state_dict()
    save_checkpoint(this.folder, progress["step"], state, this.keep_checkpoints, this.method.files())


def _resume(
    this: Round, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, log: StepLog
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
        # Earlier versions wrote it under its old name.
        this.source.teacher.load_state_dict(state["teacher"] if "teacher" in state else state["momentum"])
    log.sums = dict(state["sums"]) if this.ranks.first else {}
    return state["step"], state["steps"], state["spent"]


def _not_a_number(this: Round, step: int, rate: float) -> str:
    where = f"The loss is not a number in round {this.number}, step {step}"
    if step == 0:
        return (
            f"{where}, before anything was learned in it: the network gives descriptors that are not finite. "
            "Check the weights it starts from (--weights), or try the embedded backbone."
        )
    return (
        f"{where}. Lower the learning rate (now {rate:.1e}; for example "
        f"--set rounds.{this.number - 1}.lr={this.recipe.lr / 10:.0e}) or clip the gradient (--set rounds.clip=1), "
        "and start a new run. Checkpoints written before are intact."
    )
