"""Settings that do not fit are refused in a sentence where Python makes an object, without a word of pydantic."""

import dataclasses
import traceback

import pytest
from pydantic import TypeAdapter, ValidationError

import protonorm as pn
from protonorm.algorithms import ALGORITHMS
from protonorm.core.settings import dataclass, known_fields, sentences
from protonorm.core.types import STRICT, Count
from protonorm.data import DATASETS, PARTITIONS


@dataclass(frozen=True, config=STRICT)
class Small:
    """Two settings."""

    count: Count = 1
    share: float = 0.5


@dataclass(frozen=True, config=STRICT)
class Larger(Small):
    """One more, and a small one inside."""

    extra: int = 3
    inner: Small = Small()


CASES = {
    "a value": (lambda: Small(count=0), "count must be greater than or equal to 1, got 0."),
    "a value without its name": (lambda: Small(0), "count must be greater than or equal to 1, got 0."),
    "an unknown setting": (
        lambda: Small(cuont=1),
        "Small has no setting 'cuont'; did you mean 'count'? Known: count, share.",
    ),
    "too many values": (lambda: Small(1, 2, 3), "Small takes 2 settings at most: count, share."),
    "a replaced value": (lambda: dataclasses.replace(Small(), count=-1), "count must "),
    "a subclass": (lambda: Larger(count=-1), "count must "),
    "something inside": (
        lambda: Larger(inner={"cont": 1}),
        "Larger has no setting 'inner.cont'; did you mean 'inner.count'?",
    ),
    "two at once": (
        lambda: Larger(count=0, extra="x"),
        "count must be greater than or equal to 1, got 0.\nextra must be a valid integer, got 'x'.",
    ),
    "an algorithm": (lambda: pn.ProtoNorm(gamma=-1), "gamma must be greater than 0, got -1."),
    "a schedule": (lambda: pn.Schedule(eta=0), "eta must "),
    "an experiment": (lambda: pn.Experiment(rounds=-1), "rounds must "),
    "an experiment of no mapping": (lambda: pn.Experiment.of(["rounds"]), "An experiment needs settings"),
}


@pytest.mark.parametrize(("make", "said"), CASES.values(), ids=CASES)
def test_a_sentence_without_pydantic(make, said):
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        make()
    assert type(refused.value) is ValueError
    assert str(refused.value).startswith(said) or said in str(refused.value)
    printed = "".join(traceback.format_exception(refused.value))
    assert "errors.pydantic.dev" not in printed
    assert "validation error" not in printed


@pytest.mark.parametrize("table", [ALGORITHMS, DATASETS, PARTITIONS], ids=["algorithms", "data sets", "partitions"])
def test_all_of_ours_refuse_so(table):
    for entry in table.values():
        with pytest.raises(ValueError, match="has no setting 'nonsense'") as refused:
            entry.load()(nonsense=3)
        assert type(refused.value) is ValueError


def test_what_fits_is_taken():
    assert Larger(2, share=1, inner={"count": 4}) == Larger(count=2, share=1.0, inner=Small(4))
    assert known_fields(Larger) == {"count": [], "share": [], "extra": [], "inner": ["count", "share"]}


def test_an_experiment_has_a_signature_and_can_be_copied():
    import inspect

    assert "rounds" in inspect.signature(pn.Experiment).parameters
    assert pn.Experiment(rounds=3).model_copy(update={"rounds": 5}).rounds == 5


def test_data_that_cannot_be_described_say_why_themselves(tmp_path):
    experiment = pn.Experiment(dataset=f"folder:{tmp_path / 'nothing'}")
    for write in (lambda: experiment.key, experiment.model_dump, experiment.model_dump_json):
        with pytest.raises(ValueError, match=r"There is no folder .*nothing\.$"):
            write()


def test_no_more_complaints_are_written_than_are_shown():
    """Each asks what may be meant, which takes half a millisecond: for 20,000 unknown names that was nine seconds."""
    asked = []

    def hint(name):
        asked.append(name)
        return "it is none."

    with pytest.raises(ValidationError) as refused:
        TypeAdapter(Small).validate_python({f"x{number}": 1 for number in range(20_000)})
    said = sentences(refused.value, known_fields(Small), "Small", hint=hint)
    assert asked == ["x0", "x1", "x2", "x3", "x4"]
    assert said.splitlines()[0] == "Small has no setting 'x0'; it is none."
    assert said.splitlines()[5:] == ["There are 19995 more like these."]
