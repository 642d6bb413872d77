# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What one run is: a model, a task, a recipe, an evaluation; and one flat view of them."""

import dataclasses
from typing import Any

from phasejax.models.config import ModelConfig
from phasejax.tasks.crossed import check_lookup
from phasejax.tasks.record_lookup import TaskConfig
from phasejax.validation import (
    check_above,
    check_at_least,
    check_below,
    check_fields,
    nearest,
)


@dataclasses.dataclass(frozen=True)
class Stage:
    """One step of the curriculum: shorter prompts of the same task.

    Attributes:
        num_records: records in the prompt.
        span: tokens among which they move.
        context: context tokens of the prompt; each distinct one compiles once.
        max_steps: steps after which the stage ends whatever its accuracy.
    """

    num_records: int
    span: int
    context: int
    max_steps: int


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """How a model is trained.

    Attributes:
        curriculum: stages before the task itself, each (num_records, span, context, max_steps). A
            stage ends when the training accuracy over check_every steps reaches advance_accuracy.
        final_steps: steps on the task itself, with a cosine learning rate.
        advance_accuracy: bar that ends a stage.
        check_every: steps between looks at the accuracy; also the logging period.
        checkpoint_every: steps between checkpoints.
        keep_checkpoints: newest checkpoints kept.
        batch_size: prompts a step.
        microbatch_tokens: most tokens whose gradients are computed at once; what fits the caches.
        learning_rate: AdamW learning rate after warm-up.
        final_learning_rate: fraction of it that remains at the end.
        warmup_steps: linear warm-up from the first step.
        b1: AdamW's decay of the first moment.
        b2: AdamW's decay of the second moment.
        weight_decay: decoupled decay of every array with two or more axes: maps, embeddings, and
            the biases of the gates, [W, K]; gains and sinks do not decay.
        clip_norm: largest global norm of a gradient.
    """

    curriculum: tuple[tuple[int, int, int, int], ...] = ()
    final_steps: int = 500
    advance_accuracy: float = 0.9
    check_every: int = 25
    checkpoint_every: int = 200
    keep_checkpoints: int = 2
    batch_size: int = 64
    microbatch_tokens: int = 1024
    learning_rate: float = 5e-3
    final_learning_rate: float = 0.05
    warmup_steps: int = 50
    b1: float = 0.9
    b2: float = 0.98
    weight_decay: float = 0.01
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        for name in (
            "final_steps",
            "check_every",
            "keep_checkpoints",
            "batch_size",
            "microbatch_tokens",
            "warmup_steps",
        ):
            check_at_least(self, name, 1)
        for name in ("learning_rate", "clip_norm"):
            check_above(self, name, 0)
        for name in ("advance_accuracy", "final_learning_rate", "b1", "b2", "weight_decay"):
            check_at_least(self, name, 0)
        for name in ("b1", "b2"):
            check_below(self, name, 1)
        steps = {"final_steps": self.final_steps, "checkpoint_every": self.checkpoint_every}
        steps |= {f"curriculum[{i}].max_steps": s.max_steps for i, s in enumerate(self.stages)}
        for name, value in steps.items():
            if value < 1 or value % self.check_every:
                raise ValueError(
                    f"{name}={value} is not a positive multiple of check_every={self.check_every}:"
                    " stages end and checkpoints are written when the accuracy is looked at."
                    " Change either."
                )

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The curriculum, typed."""
        return tuple(Stage(*stage) for stage in self.curriculum)

    def microbatch(self, prompt_length: int) -> int:
        """Prompts of a microbatch: the largest divisor of the batch within microbatch_tokens."""
        sizes = [n for n in range(1, self.batch_size + 1) if self.batch_size % n == 0]
        return max(n for n in sizes if n == 1 or n * prompt_length <= self.microbatch_tokens)

    @property
    def max_steps(self) -> int:
        """Steps if no stage ends early."""
        return sum(stage.max_steps for stage in self.stages) + self.final_steps


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """How a model is evaluated.

    Attributes:
        eval_documents: documents, each seen at every residue.
        eval_seed: seed of the documents, the same for every run that is compared.
        eval_batch: prompts a forward pass.
        gate_documents: documents whose gate weights are stored.
    """

    eval_documents: int = 400
    eval_seed: int = 20_000
    eval_batch: int = 96
    gate_documents: int = 16

    def __post_init__(self) -> None:
        check_fields(self)
        check_at_least(self, "eval_documents", 2)  # else no interval and no test
        check_at_least(self, "eval_seed", 0)
        for name in ("eval_batch", "gate_documents"):
            check_at_least(self, name, 1)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """One run.

    Attributes:
        name: name in tables; controls start with "full".
        recipe: name of the task and recipe; runs of one recipe share a control.
        seed: seed of parameters and training prompts.
        model: the decoder; its vocab_size is the task's.
        task: the prompts.
        train: the recipe.
        evaluation: the evaluation.
    """

    name: str
    recipe: str
    seed: int
    model: ModelConfig
    task: TaskConfig
    train: TrainConfig
    evaluation: EvalConfig

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("name", "recipe"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name}={getattr(self, name)!r} is blank: give the run a {name}.")
        check_at_least(self, "seed", 0)
        check_below(self, "seed", SEEDS)
        check_at_least(self.task, "residues", 2)  # else no phase to compare
        if self.model.vocab_size != self.task.vocab_size:
            raise ValueError(
                f"vocab_size={self.model.vocab_size}, but the task has {self.task.vocab_size}"
                " tokens: leave it out."
            )
        check_lookup(self.task)
        if self.model.attention == "compressed":
            self._check_grid()
            self._check_reach()
        for stage in self.train.stages:
            stage_task(self.task, stage)

    def _check_grid(self) -> None:
        grid = self.model.geometry
        if grid.window > self.task.context:
            raise ValueError(
                f"window={grid.window} is larger than context={self.task.context}, so no entry"
                " would ever be complete: lower window or raise context."
            )
        if self.task.residues % grid.stride:
            raise ValueError(
                f"residues={self.task.residues} is not a multiple of stride={grid.stride}, so the"
                " phases of a residue would differ: choose residues a common multiple of the"
                " strides compared."
            )

    def _check_reach(self) -> None:
        """Every scored record must lie outside the query's exact tokens and the open window."""
        task, model = self.task, self.model
        key = task.context - task.free - task.record_length + task.max_shift  # the nearest one
        distance = int(task.query_positions[-1]) - (key + 1 + task.separation)
        reach = max(model.window, model.span.size or 0)
        if distance < reach:
            raise ValueError(
                f"A target may stand {distance} tokens before the query, within the {reach} that"
                f" the query reads exactly (window={model.window}, {model.exact_tokens} of"
                f" local_window={model.local_window}): raise demonstrations={task.demonstrations}"
                f" or context={task.context}, or lower local_window or window."
            )

    def flat(self) -> dict[str, Any]:
        """All fields in one dictionary, as files and flags name them."""
        flat: dict[str, Any] = {name: getattr(self, name) for name in OWN_FIELDS}
        for group in GROUPS:
            flat |= dataclasses.asdict(getattr(self, group))
        del flat["vocab_size"]
        flat["curriculum"] = [list(stage) for stage in self.train.curriculum]
        return flat

    @classmethod
    def from_flat(cls, flat: dict[str, Any]) -> "RunConfig":
        """Builds and checks a run from the flat view.

        Raises:
            ValueError: for an unknown field, naming the closest one, and for any value that does
                not fit.
        """
        known = flat_fields()
        for name in flat:
            if name not in known:
                raise ValueError(f"Unknown config field {name!r}: {nearest(name, known)}")
        for name in OWN_FIELDS:
            if name not in flat:
                raise ValueError(f"The config lacks the field {name!r}: add it.")
        values = dict(flat)
        if "curriculum" in values:
            values["curriculum"] = _tuples(values["curriculum"])
        parts = {
            name: {f.name: values[f.name] for f in dataclasses.fields(group) if f.name in values}
            for name, group in GROUPS.items()
        }
        task = TaskConfig(**parts["task"])
        return cls(
            **{name: values[name] for name in OWN_FIELDS},
            model=ModelConfig(**parts["model"], vocab_size=task.vocab_size),
            task=task,
            train=TrainConfig(**parts["train"]),
            evaluation=EvalConfig(**parts["evaluation"]),
        )


SEEDS = 2**32  # JAX reads so much of a seed: a larger one would repeat the draws of another
OWN_FIELDS = ("name", "recipe", "seed")
GROUPS = {"model": ModelConfig, "task": TaskConfig, "train": TrainConfig, "evaluation": EvalConfig}


def _tuples(value: Any) -> Any:
    """Lists, which is what JSON has, as tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def flat_fields() -> set[str]:
    """Names of the flat view; vocab_size is not among them, as it is the task's."""
    grouped = {f.name for group in GROUPS.values() for f in dataclasses.fields(group)}
    return grouped - {"vocab_size"} | set(OWN_FIELDS)


def stage_task(task: TaskConfig, stage: Stage) -> TaskConfig:
    """The prompts of a curriculum stage."""
    return dataclasses.replace(
        task, num_records=stage.num_records, span=stage.span, context=stage.context, residues=1
    )
