"""The archives as their owners publish them, and who reads each; the table imports no reader."""

from typing import NamedTuple

from protonorm.core.registry import Entry


class File(NamedTuple):
    """One file to download."""

    name: str
    md5: str
    url: str  # the folder it is in


class Source(NamedTuple):
    """Files that make up a data set, and who reads them."""

    files: tuple[File, ...]
    reader: Entry
    unpacked: bool = False  # whether checksums are those of what gzip has packed; then files may be plain, too


# All over https, which every owner offers; checksums are checked besides. Fashion-MNIST is taken from the repository of
# its owners: the address that they give in the text is that of a bucket's web site, which answers to http only.
TORONTO = "https://www.cs.toronto.edu/~kriz/"
OXFORD = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"
STANFORD = "https://cs231n.stanford.edu/"
ZALANDO = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"
DIGITS = "https://ossci-datasets.s3.amazonaws.com/mnist/"

SOURCES: dict[str, tuple[Source, ...]] = {  # the first one is downloaded; any one is enough
    "cifar10": (
        Source(
            (File("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", TORONTO),),
            Entry("protonorm.data.published.archives.cifar:read_binary10", "records of bytes"),
        ),
        Source(
            (File("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", TORONTO),),
            Entry("protonorm.data.published.archives.cifar:read_python10", "pickles, of which nothing is executed"),
        ),
    ),
    "cifar100": (
        Source(
            (File("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", TORONTO),),
            Entry("protonorm.data.published.archives.cifar:read_binary100", "records of bytes"),
        ),
        Source(
            (File("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", TORONTO),),
            Entry("protonorm.data.published.archives.cifar:read_python100", "pickles, of which nothing is executed"),
        ),
    ),
    "flowers102": (
        Source(
            (
                File("102flowers.tgz", "52808999861908f626f3c1f4e79d11fa", OXFORD),
                File("imagelabels.mat", "e0620be6f572b9609742df49c70aed4d", OXFORD),
                File("setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c", OXFORD),
            ),
            Entry("protonorm.data.published.archives.flowers:read_flowers", "photographs, resized to 64×64"),
        ),
    ),
    "tinyimagenet": (
        Source(
            (File("tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", STANFORD),),
            Entry(
                "protonorm.data.published.archives.tinyimagenet:read_tinyimagenet",
                "photographs, training and validation",
            ),
        ),
    ),
    "fashion-mnist": (
        Source(
            (
                File("train-images-idx3-ubyte.gz", "f4a8712d7a061bf5bd6d2ca38dc4d50a", ZALANDO),
                File("train-labels-idx1-ubyte.gz", "9018921c3c673c538a1fc5bad174d6f9", ZALANDO),
                File("t10k-images-idx3-ubyte.gz", "8181f5470baa50b63fa0f6fddb340f0a", ZALANDO),
                File("t10k-labels-idx1-ubyte.gz", "15d484375f8d13e6eb1aabb0c3f46965", ZALANDO),
            ),
            Entry("protonorm.data.published.archives.idx:read_fashion", "arrays of bytes"),
            unpacked=True,
        ),
    ),
    "mnist": (
        Source(
            (
                File("train-images-idx3-ubyte.gz", "6bbc9ace898e44ae57da46a324031adb", DIGITS),
                File("train-labels-idx1-ubyte.gz", "a25bea736e30d166cdddb491f175f624", DIGITS),
                File("t10k-images-idx3-ubyte.gz", "2646ac647ad5339dbf082846283269ea", DIGITS),
                File("t10k-labels-idx1-ubyte.gz", "27ae3e4e09519cfbb04c329615203637", DIGITS),
            ),
            Entry("protonorm.data.published.archives.idx:read_digits", "arrays of bytes"),
            unpacked=True,
        ),
    ),
}
