"""Policy of a client's owner: a YAML file in the client's folder, which neither server nor settings can override."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from annotated_types import MinLen
from pydantic import AfterValidator, PlainSerializer, ValidationInfo, field_validator

from protonorm.algorithms import ALGORITHMS
from protonorm.config.parsing import read_yaml
from protonorm.core.registry import find
from protonorm.core.robust import Rule
from protonorm.core.text import listed
from protonorm.core.training import MinimumCount, describe_outgoing, make_outgoing
from protonorm.core.types import Count, Positive
from protonorm.deployment.ledger import not_covered
from protonorm.deployment.settings import Allowed, ClientSettings, Document, full_value
from protonorm.models.choose import Recipe

if TYPE_CHECKING:
    from protonorm.core.schema import Field
    from protonorm.core.task import Task
    from protonorm.deployment.agreement import Agreement
    from protonorm.deployment.site import OwnSite

LISTED = 4  # tensors of one part of a message that are named singly
TOLD: tuple[Allowed, ...] = ("off", "accuracy", "classes")  # from least to most


def _check_method(name: str) -> str:
    find(ALGORITHMS, name, "algorithm")
    return name


class OwnerPolicy(Document):
    """What an owner allows; a field that is left out allows everything."""

    methods: Annotated[list[Annotated[str, AfterValidator(_check_method)]], MinLen(1)] | None = None
    rounds: Count | None = None  # largest number of rounds of an agreement
    combine: Annotated[list[Rule], MinLen(1)] | None = None  # rules by which the server may combine messages
    members: Count | None = None  # least number of members that a secure sum must have
    protect: Annotated[
        Any, AfterValidator(make_outgoing), PlainSerializer(describe_outgoing, when_used="unless-none")
    ] = None
    # outgoing step, as in the settings of training; None leaves it to these
    evaluation: Allowed = "classes"  # most that may be told of counts of right answers
    loss: bool = True  # whether training losses and seconds may be told; never with a claim of privacy
    received: Positive | None = None  # largest root mean square of a tensor that the server publishes

    @field_validator("evaluation", mode="before")
    @classmethod
    def _off_is_no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        return "off" if value is False else value  # YAML 1.1 reads off as false

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read a policy; None if there is no file. Raise ValueError for anything that is not understood."""
        if not path.exists():
            return None
        try:
            return cls.checked(read_yaml(path), str(path))
        except ValueError as error:
            raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from None

    def check(self, terms: Agreement) -> None:
        """Raise ValueError for an agreement that the owner does not allow."""
        method = terms.algorithm["name"]
        if self.methods is not None and method not in self.methods:
            raise ValueError(f"The owner's policy allows the methods {listed(self.methods)}, got {method}.")
        if self.rounds is not None and terms.rounds > self.rounds:
            raise ValueError(f"The owner's policy allows {self.rounds} rounds at most, got {terms.rounds}.")
        if self.combine is not None and terms.combine not in self.combine:
            raise ValueError(
                f"The owner's policy allows that messages are combined by {listed(self.combine)}, got {terms.combine}."
            )
        if self.members is not None and 0 < terms.task.least_members < self.members:
            raise ValueError(
                f"The owner's policy allows combine=secure_sum:{self.members} or more members, got {terms.combine}."
            )

    def within(self, own: ClientSettings) -> ClientSettings:
        """Return a client's settings within the policy: its outgoing step, and no more told than it allows."""
        step = own.protect if self.protect is None else self.protect
        most: Allowed = "accuracy" if isinstance(step, MinimumCount) else "classes"  # by class it would be no secret
        least = min(own.allowed, self.evaluation, most, key=TOLD.index)
        return ClientSettings.of(own.plain() | {"protect": describe_outgoing(step), "allowed": least})

    def lines(self) -> Iterator[tuple[str, str]]:
        """List the terms for display as (label, value)."""
        for name, value in self.plain().items():
            if value is not None:
                yield name, listed(list(map(str, value))) if isinstance(value, list) else full_value(value)


def preview(site: OwnSite, spent: float = 0.0, unprotected: int = 0) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Return what a client would send: (class, training samples, whether it is sent), and sentences about the rest.

    `spent` is the privacy loss ρ of earlier messages, `unprotected` the number of those that were sent without noise.
    """
    task, protect = site.task, site.training.protect
    fields = {name: field for slot in task.schema.up for name, field in slot[0].items()}
    by_class = any(field.shape[:1] == ("K_i",) for field in fields.values())
    rows = []
    for name, count in zip(task.classes, site.facts().train[0].tolist(), strict=True):
        enough = count >= protect.least if isinstance(protect, MinimumCount) else count > 0
        sent = "with noise" if protect.private else "yes" if by_class and enough else "no" if by_class else "-"
        rows.append((name, str(count), sent))
    lines = [_contents(task, fields) if fields else "The method sends nothing."]
    if protect.private:
        loss, wanted = protect.spends(task), protect.releases(task)
        allowed = sum(not protect.refusal(spent + count * loss) for count in range(1, wanted + 1))
        now, then = (protect.told(rho).get("epsilon", 0.0) for rho in (spent, spent + allowed * loss))
        lines.append(
            f"The privacy loss allows {allowed} of {wanted} messages: ε = {now:.3g} is spent, {then:.3g} afterwards; "
            f"no loss and no seconds are told."
        )
        if unprotected:
            lines.append(not_covered(unprotected))
    elif fields and not task.secure:
        lines.append("Messages are sent without noise, and tell of the samples that they were computed from.")
    if fields and task.secure:
        lines.append(
            f"Messages are masked before they are sent: the server learns the sum of {task.least_members} members or "
            "more, and no single message. A class that one member alone has is in the sum as it is."
        )
    return rows, lines


def _contents(task: Task, fields: Mapping[str, Field]) -> str:
    """Return a sentence about the tensors of a message: a network's are counted, others are listed."""
    groups: dict[str, list[Field]] = {}
    for name, field in fields.items():
        groups.setdefault(name.partition(".")[0], []).append(field)
    large = {prefix: each for prefix, each in groups.items() if len(each) > LISTED}
    parts = []
    for prefix, each in large.items():
        network = f" of the network {task.shared_network.name}" if isinstance(task.shared_network, Recipe) else ""
        shapes = [[task.schema.exact.get(str(size), size) for size in field.shape] for field in each]
        numbers = sum(prod(size for size in shape if isinstance(size, int)) for shape in shapes)
        most = " at most" if any(field.up_to for field in each) else ""
        parts.append(f"{prefix} ({len(each)} tensors{network}, {numbers:,} numbers{most})")
    others = {name: field for name, field in sorted(fields.items()) if name.partition(".")[0] not in large}
    parts += [f"{name} ({', '.join(map(str, field.shape)) or '1'})" for name, field in others.items()]
    symbols = dict.fromkeys(size for field in others.values() for size in field.shape if isinstance(size, str))
    meanings = [_meaning(task, symbol) for symbol in symbols]
    return f"A message has {_joined(parts)}{f': {_joined(meanings)}' if meanings else ''}."


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _meaning(task: Task, symbol: str) -> str:
    """Explain a symbol of a shape."""
    if symbol == "K_i":
        return f"K_i is the number of classes in it ({task.num_classes} at most)"
    value = f" = {task.schema.exact[symbol]}" if symbol in task.schema.exact else ""
    meanings = {"d": "is the width of the features", "K": "is the number of all classes"}
    return f"{symbol}{value} {meanings.get(symbol, 'is a length that the method sets')}"
