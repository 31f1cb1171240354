"""What a trained client is, in plain data: the types of client.json. Nothing here needs torch."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, MinLen

from protonorm.runs.schema import Component, InputInfo, Name, Network, Number, Part, Share, Whole

FORMAT = 4
INFO, WEIGHTS, CARD, ONNX = "client.json", "client.safetensors", "README.md", "model.onnx"
MEAN, DEVIATION = 0.5, 0.5  # of bytes x/255, for networks
PILLOW = {1: "L", 3: "RGB"}  # Pillow's modes of pictures with so many channels


class Recommendation(Part):
    """Which rule's answer is recommended, and what says how sure it is."""

    rule: Name
    by: Literal["validation", "headline"]  # it won on the validation parts; or it is the method's usual one
    validation: Share | None = None  # its accuracy there, the mean over clients
    probability: Name  # the rule whose softmax gives the answer's probability
    calibration: Share | None = None  # that rule's calibration error on the validation samples of all clients


class Preprocessing(Part):
    """What is done to one input before the network: all of it, in the order of these lines."""

    steps: Annotated[list[str], MinLen(1)]  # in words
    mode: Name | None = None  # Pillow's name of the colours of pictures
    size: Annotated[list[Annotated[int, Ge(1)]], MinLen(2)] | None = None  # (H, W)
    interpolation: Literal["bilinear"] | None = None  # Pillow's, which smooths when it makes smaller
    mean: Number | None = None  # taken out of x/255
    deviation: Number | None = None  # what is left is divided by it


class Measured(Part):
    """One rule on one part of a client's samples, of which it trained on none."""

    part: Literal["validation", "test"]
    rule: Name
    samples: Whole
    accuracy: Share
    balanced: Share | None = None
    f1: Share | None = None
    log_loss: Number | None = None
    calibration: Share | None = None


class Facts(Part):
    """Where a client comes from, and how good it was there."""

    data: Name  # the data set's name
    train: Whole  # samples that the client trained on
    rounds: Whole  # of the run
    chosen: str  # how the client's round was chosen, in words
    metrics: list[Measured]
    measured: str  # how, in words
    date: str  # the day on which the round's state was written, UTC
    commit: str | None  # of the repository in whose folder the run was begun
    dirty: bool | None  # whether files of it were changed since
    versions: dict[str, str]


class ClientInfo(Part):
    """What a trained client is."""

    format: int
    client: Whole
    name: Name  # of the client: that of its folder or file, or its number
    run: str
    round: Whole  # the round after which it was as it is here: what the server said last is of that round
    trained: Whole  # the last round it trained in
    algorithm: Component
    headline: str
    recommended: Recommendation
    network: Network
    auxiliary: Network | None = None  # the second network of a method that has one
    feature_dim: Annotated[int, Ge(1)]
    input: InputInfo
    preprocessing: Preprocessing
    classes: Annotated[list[str], MinLen(1)]
    lowered: bool  # whether layers take their CPU forms: their last bits differ
    precision: Literal["float32", "bfloat16"]
    sharpness: dict[Name, Number] | None = None  # 1/T of its rules in `joint`, 1 where none is given; None: not known

    @property
    def network_name(self) -> str:
        """Name the client's network."""
        return self.network if isinstance(self.network, str) else str(self.network["name"])


def preprocessing(inputs: InputInfo) -> Preprocessing:
    """Say what is done to one input of a kind before the network."""
    if inputs.type != "uint8":
        kind = "vector of D numbers, float32" if inputs.vocabulary is None else "row of L tokens, int64"
        return Preprocessing(steps=[f"a {kind}, as in the training data; nothing is done to it"])
    height, width, channels = inputs.shape
    steps = [f"resize to {width} pixels across and {height} down, bilinear (Pillow)", "bytes (H, W, C)"]
    if channels in PILLOW:
        steps.insert(0, f"turn upright as EXIF says, and convert to {PILLOW[channels]} (Pillow)")
    steps += [f"(x/255 − {MEAN:g})/{DEVIATION:g}, numbers from −1 to 1", "(C, H, W)"]
    return Preprocessing(
        steps=steps,
        mode=PILLOW.get(channels),
        size=[height, width],
        interpolation="bilinear",
        mean=MEAN,
        deviation=DEVIATION,
    )
