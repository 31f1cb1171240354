"""User datasets, selected by one setting: folders, files, tables, and partitions of others.

They are named after their file, and a mapped copy of each is kept.
"""

import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le

from protonorm.core.settings import dataclass
from protonorm.core.types import MAX_VOCABULARY, NOT_TRUTH, STRICT, Count
from protonorm.data.access import real_path
from protonorm.data.dataset import Dataset, Names, default_models
from protonorm.data.mapped import Mapped, file_version, open_mapped, short_hash
from protonorm.data.own import folders, pfllib
from protonorm.data.own.encoding import Missing, Options, Separator, Unit, refuse_one_class
from protonorm.data.own.hugging import folder_version, read_saved
from protonorm.data.own.tables import read_features, read_table, read_tokens
from protonorm.data.prepared import Arrays, data_root, read_prepared

Channels = Literal[1, 3]
Vocabulary = Annotated[int, Ge(2), Le(MAX_VOCABULARY), NOT_TRUTH]


class OwnFiles(ABC):
    """Base class of a user's file or folder, which is read once and then opened from its mapped copy."""

    kind: ClassVar[str]
    path: Path

    @staticmethod
    @abstractmethod
    def read(path: Path, options: Options) -> Arrays:
        """Read the data; raise a ValueError if they are invalid."""

    @property
    def options(self) -> Options:
        """Settings that define how the data are read."""
        values: dict[str, Any] = {name: getattr(self, name) for name in Options._fields if hasattr(self, name)}
        if isinstance(names := values.get("drop"), str):  # one name, or several separated by commas
            values["drop"] = tuple(name.strip() for name in names.split(",") if name.strip())
        return Options(**values)

    @property
    def name(self) -> str:
        """Name of the dataset, from its file or folder."""
        return f"{self.kind}:{self._safe_name()}"

    @property
    def names(self) -> Names:
        """Names of the classes, and of the clients if they have names."""
        return self.opened().arrays.classes, None

    def opened(self) -> Mapped:
        """Read or map the data."""
        path, options = real_path(self.path), self.options
        name = f"{self.kind}-{self._safe_name()}-{short_hash(path, options)}"
        return open_mapped(data_root(), name, self._version(path), self.read, path, options)

    def load(self) -> Dataset:
        """Read or map the data of an experiment; raise a ValueError if they have fewer than two classes."""
        data = self.dataset()
        refuse_one_class(data.classes, str(real_path(self.path)))
        return data

    def dataset(self) -> Dataset:
        """Read or map the data with any number of classes: one of several sites may have a single class."""
        (images, labels, split, _, owner, vocabulary, keys, groups), names = self.opened().arrays, self.names
        own_split = None if owner is None else split
        return Dataset(self.name, images, labels, names[0], owner, own_split, vocabulary, names[1], keys, groups)

    def description(self) -> dict[str, Any]:
        """Return a description of the content, independent of its path."""
        arrays, about = self.opened()
        refuse_one_class(arrays.classes, str(real_path(self.path)))
        return {"name": self.name} | ({} if arrays.vocabulary is None else {"vocabulary": arrays.vocabulary}) | about

    def _version(self, path: Path) -> str:
        return file_version(path)

    def _safe_name(self) -> str:
        """Return the last part of the path as a word that is valid in a file name."""
        return re.sub(r"[^\w.-]+", "-", real_path(self.path).stem).strip("-.") or "data"


@dataclass(frozen=True, config=STRICT)
class Folder(OwnFiles):
    """Images in one folder per class, named after the class."""

    path: Path
    size: Count | None = None  # side length in pixels to which all images are resized
    channels: Channels | None = None  # 1 for grey, 3 for colour
    skip_bad: bool = False  # skip unreadable images, with a warning that lists them
    window: str | None = None  # CENTRE/WIDTH of the values of DICOM and 16-bit images that are told apart

    kind: ClassVar[str] = "folder"
    read = staticmethod(folders.read_folder)

    def description(self) -> dict[str, Any]:
        """Return a description of the content, independent of its path."""
        return super().description() | ({} if self.window is None else {"window": self.window})

    def _version(self, path: Path) -> str:
        files = folders.picture_files(path)
        return short_hash(files, folders.files_version(file.path for file in files))


@dataclass(frozen=True, config=STRICT)
class Clients(Folder):
    """Data that clients own: a folder of class folders, or a file of the prepared form, per client."""

    kind: ClassVar[str] = "clients"
    read = staticmethod(folders.read_clients)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(folders.client_paths(real_path(self.path)))

    @property
    def names(self) -> Names:
        """Names of the classes and of the clients."""
        return self.opened().arrays.classes, folders.client_names(real_path(self.path))

    def _version(self, path: Path) -> str:
        return folders.files_version(folders.client_files(path))


@dataclass(frozen=True, config=STRICT)
class Domains(Folder):
    """Several data sets as groups of one: laid out as data that clients own, for partition=natural."""

    kind: ClassVar[str] = "domains"
    read = staticmethod(folders.read_domains)

    def _version(self, path: Path) -> str:
        return folders.files_version(folders.client_files(path))


@dataclass(frozen=True, config=STRICT)
class Npz(OwnFiles):
    """File of the prepared form; its training and test images are merged."""

    path: Path

    kind: ClassVar[str] = "npz"
    read = staticmethod(read_prepared)


class OwnData(OwnFiles):
    """Base class of user data whose default model family depends on their content."""

    @property
    def models(self) -> str:
        """Default model family for such data."""
        return default_models(self.opened().arrays.images)


@dataclass(frozen=True, config=STRICT)
class PFLlib(OwnData):
    """Partition that PFLlib or HtFLlib wrote: config.json, and an .npz file per client in train and in test."""

    path: Path

    kind: ClassVar[str] = "pfllib"
    read = staticmethod(pfllib.read_partition)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(pfllib.client_files(real_path(self.path)))

    def _version(self, path: Path) -> str:
        return folders.files_version(file for pair in pfllib.client_files(path) for file in pair)


@dataclass(frozen=True, config=STRICT)
class Array(OwnData):
    """Vectors in an .npz file."""

    path: Path
    standardise: bool = True  # scale every column to mean 0 and standard deviation 1

    kind: ClassVar[str] = "array"
    read = staticmethod(read_features)


@dataclass(frozen=True, config=STRICT)
class Text(OwnData):
    """Texts as tokens in an .npz file."""

    path: Path

    kind: ClassVar[str] = "text"
    read = staticmethod(read_tokens)


@dataclass(frozen=True, config=STRICT)
class Columns(OwnData):
    """Base class of user data in columns."""

    path: Path
    label: str = "label"  # column of the classes
    drop: str | tuple[str, ...] = ()  # columns to ignore
    group: str | None = None  # column that says which rows belong together, such as a site, for partition=natural
    missing: Missing = "refuse"  # missing values raise an error, or are replaced by the column's mean
    categories: Count = 50  # maximum number of distinct words in a column
    standardise: bool = True  # scale every numeric column to mean 0 and standard deviation 1
    unit: Unit = "words"  # tokens of a text
    length: Count | None = None  # maximum number of tokens per text; None: 64 words or 256 characters
    vocabulary: Vocabulary = 4096  # number of distinct tokens


@dataclass(frozen=True, config=STRICT)
class Table(Columns):
    """CSV file with column names in its first line."""

    text: str | None = None  # column to read as text; the others are then ignored
    separator: Separator = "comma"

    kind: ClassVar[str] = "table"
    read = staticmethod(read_table)


@dataclass(frozen=True, config=STRICT)
class HuggingFace(Columns):
    """Folder written by `save_to_disk` of Hugging Face datasets; its parts are merged."""

    input: str | None = None  # column to learn from; None: the column of images, or all columns of plain values
    size: Count | None = None  # side length in pixels to which all images are resized
    channels: Channels | None = None  # 1 for grey, 3 for colour

    kind: ClassVar[str] = "hf"
    read = staticmethod(read_saved)

    def _version(self, path: Path) -> str:
        return folder_version(path)
