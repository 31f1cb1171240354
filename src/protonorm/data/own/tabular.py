"""The user's own data that are not pictures, by one setting: array:PATH, table:PATH, text:PATH; and hf:PATH."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from protonorm.core.settings import dataclass
from protonorm.core.types import NOT_TRUTH, STRICT, Count
from protonorm.data.access import real_path
from protonorm.data.dataset import MOST_TOKENS, usual_models
from protonorm.data.mapped import Mapped, file_version, open_mapped
from protonorm.data.own.arrays import read_features, read_tokens
from protonorm.data.own.columns import ColumnOptions, Missing
from protonorm.data.own.datasets import Channels
from protonorm.data.own.files import OwnFiles
from protonorm.data.own.folders import ImageOptions
from protonorm.data.own.hugging import HuggingOptions, folder_version, read_saved
from protonorm.data.own.tables import Separator, TableOptions, read_table
from protonorm.data.own.tokens import TokenOptions, Unit
from protonorm.data.prepared import data_root

Vocabulary = Annotated[int, Ge(2), Le(MOST_TOKENS), NOT_TRUTH]


class OwnData(OwnFiles):
    """Data of any kind: which networks are usual for them shows once they are read."""

    @property
    def models(self) -> str:
        """Name the family of networks that is usual for such data."""
        return usual_models(self.opened().arrays.images)


@dataclass(frozen=True, config=STRICT)
class Array(OwnData):
    """Vectors in an .npz file."""

    path: Path
    standardise: bool = True  # bring every column to mean 0 and deviation 1

    kind: ClassVar[str] = "array"

    def opened(self) -> Mapped:
        """Read or map the vectors."""
        source = (real_path(self.path), self.standardise)
        return open_mapped(data_root(), self.copy_name(source[1]), file_version(source[0]), read_features, source)


@dataclass(frozen=True, config=STRICT)
class Table(OwnData):
    """A CSV file with names in its first line."""

    path: Path
    label: str = "label"  # the column of the classes
    text: str | None = None  # a column to read as text; the others are not used then
    drop: str | tuple[str, ...] = ()  # columns to leave out
    missing: Missing = "refuse"  # what is done where no value stands: mean puts the column's there
    categories: Count = 50  # different words of a column at most
    standardise: bool = True  # bring every column of numbers to mean 0 and deviation 1
    separator: Separator = "comma"
    unit: Unit = "words"  # tokens of a text
    length: Count | None = None  # tokens of a text at most; None takes 64 words or 256 characters
    vocabulary: Vocabulary = 4096  # different tokens

    kind: ClassVar[str] = "table"

    def opened(self) -> Mapped:
        """Read or map the table."""
        source = (real_path(self.path), self._options())
        return open_mapped(data_root(), self.copy_name(source[1]), file_version(source[0]), read_table, source)

    def _options(self) -> TableOptions:
        return TableOptions(
            label=self.label,
            text=self.text,
            drop=listed(self.drop),
            separator=self.separator,
            columns=ColumnOptions(self.missing, self.categories, self.standardise),
            tokens=TokenOptions(self.unit, self.length, self.vocabulary),
        )


@dataclass(frozen=True, config=STRICT)
class Text(OwnData):
    """Texts as tokens in an .npz file."""

    path: Path

    kind: ClassVar[str] = "text"

    def opened(self) -> Mapped:
        """Read or map the tokens."""
        path = real_path(self.path)
        return open_mapped(data_root(), self.copy_name(), file_version(path), read_tokens, path)


@dataclass(frozen=True, config=STRICT)
class HuggingFace(OwnData):
    """A folder that `save_to_disk` of Hugging Face datasets wrote; its parts are put together."""

    path: Path
    label: str = "label"  # the column of the classes
    input: str | None = None  # the column to learn from; None takes the one with pictures, or all of plain values
    drop: str | tuple[str, ...] = ()  # columns to leave out
    size: Count | None = None  # pixels of a side that all pictures are resized to
    channels: Channels | None = None  # grey or coloured
    missing: Missing = "refuse"
    categories: Count = 50
    standardise: bool = True
    unit: Unit = "words"
    length: Count | None = None
    vocabulary: Vocabulary = 4096

    kind: ClassVar[str] = "hf"

    def opened(self) -> Mapped:
        """Read or map the data."""
        source = (real_path(self.path), self._options())
        return open_mapped(data_root(), self.copy_name(source[1]), folder_version(source[0]), read_saved, source)

    def _options(self) -> HuggingOptions:
        return HuggingOptions(
            label=self.label,
            input=self.input,
            drop=listed(self.drop),
            pictures=ImageOptions(self.size, self.channels),
            columns=ColumnOptions(self.missing, self.categories, self.standardise),
            tokens=TokenOptions(self.unit, self.length, self.vocabulary),
        )


def listed(names: str | tuple[str, ...]) -> tuple[str, ...]:
    """Take one name, several with commas between, or a list."""
    return tuple(name.strip() for name in names.split(",") if name.strip()) if isinstance(names, str) else names
