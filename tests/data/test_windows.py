"""Pictures with more than eight bits: DICOM and 16-bit files become bytes by a window, in training and later."""

import json
import sys

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom import pixels
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid
from typer.testing import CliRunner

import protonorm as pn
from protonorm.cli.app import app
from protonorm.data.own.datasets import Folder
from protonorm.data.pictures import apply_window, read_header, read_picture, read_window
from protonorm.inference.loading import load_client
from tests.support import run, run_folder

STORED = np.array([[0, 864, 1024], [1064, 1263, 3000]], np.uint16)  # Hounsfield units by the rescaling: 1024 less
BY_WINDOW = [[0, 0, 102], [128, 255, 255]]  # 40/400: black to −160, white from 239, 255·((x − 39.5)/399 + 0.5) between


def write(path, stored=STORED, **change):
    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, CTImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    made = FileDataset(path, {}, file_meta=meta, preamble=bytes(128))
    made.Rows, made.Columns = stored.shape[-2:] if stored.ndim == 2 else stored.shape[:2]
    about = {"SamplesPerPixel": 1, "PhotometricInterpretation": "MONOCHROME2", "PixelRepresentation": 0}
    about |= {"BitsAllocated": 16, "BitsStored": 12, "HighBit": 11, "RescaleSlope": 1, "RescaleIntercept": -1024}
    for name, value in (about | change).items():
        setattr(made, name, value)
    made.PixelData = stored.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save_as(path, enforce_file_format=True)
    return path


def read(path, window=None):
    assert read_header(path, window=read_window(window))[:2] == (2, 3)
    return read_picture(path, path.name, None, 1, read_window(window))[:, :, 0].tolist()


def test_a_window_is_the_linear_function_of_the_standard(tmp_path):
    assert read(write(tmp_path / "a.dcm"), "40/400") == BY_WINDOW
    inverted = write(tmp_path / "b.dcm", PhotometricInterpretation="MONOCHROME1")
    assert read(inverted, "40/400") == (255 - np.array(BY_WINDOW)).tolist()


def test_without_a_window_that_of_the_file_counts(tmp_path):
    """Compared with pydicom's own windowing, whose output has the range of twelve bits, −1024 to 3071."""
    own = write(tmp_path / "a.dcm", WindowCenter=[40, 300], WindowWidth=[400, 1500])
    assert read(own) == BY_WINDOW
    assert read(own, "300/1500") != BY_WINDOW
    content = pydicom.dcmread(own)
    theirs = pixels.apply_windowing(pixels.apply_rescale(content.pixel_array, content), content, index=0)
    assert np.rint((theirs + 1024) / 4095 * 255).tolist() == BY_WINDOW
    with pytest.raises(ValueError, match=r"come without a window; dataset\.window=CENTRE/WIDTH"):
        read(write(tmp_path / "b.dcm"))


def test_sixteen_bits_need_a_window(tmp_path):
    values = np.array([[0, 1000, 32768], [40000, 65000, 65535]], np.uint16)
    for name in ("a.png", "a.tif"):
        Image.fromarray(values).save(tmp_path / name)
        assert read(tmp_path / name, "32768/65536") == np.rint(values / 65535 * 255).tolist()
        with pytest.raises(ValueError, match=r"more than eight bits; dataset\.window=CENTRE/WIDTH, as in 40/400"):
            read(tmp_path / name)
    Image.fromarray(np.full((2, 3), 7, np.uint8)).save(tmp_path / "b.png")
    assert read(tmp_path / "b.png", "40/400") == [[7] * 3] * 2  # eight bits are as they are


def test_colours_are_taken_as_they_are(tmp_path):
    colours = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    about = {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB", "PlanarConfiguration": 0}
    path = write(tmp_path / "a.dcm", colours, **about, BitsAllocated=8, BitsStored=8, HighBit=7)
    assert read_header(path) == (2, 3, 3)
    assert np.array_equal(read_picture(path, "a", None, 3), colours)


@pytest.mark.parametrize("text", ["40", "40/1", "40/-5", "a/b", "nan/4", "40/1e999", "40/4/4", ""])
def test_a_window_has_a_centre_and_a_width(text):
    with pytest.raises(ValueError, match="must be CENTRE/WIDTH with a width above 1"):
        read_window(text)
    assert apply_window(np.array([[-200.0]]), read_window(" -600/1500 ")).dtype == np.uint8


def test_what_is_no_picture_of_one_frame_is_refused(tmp_path, monkeypatch):
    frames = write(tmp_path / "frames.dcm", np.concatenate([STORED, STORED]), NumberOfFrames=2)
    cut = write(tmp_path / "cut.dcm")
    cut.write_bytes(cut.read_bytes()[:-4])
    (tmp_path / "text.dcm").write_text("hello" * 100)
    for name, said in (("frames", "one frame"), ("cut", "cut.dcm cannot be read"), ("text", "text.dcm cannot be read")):
        with pytest.raises(ValueError, match=said):
            read_picture(tmp_path / f"{name}.dcm", str(tmp_path / f"{name}.dcm"), None, 1, (40.0, 400.0))
    assert frames.exists()
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(ValueError, match=r"needs pydicom, which is not installed: pip install '\.\[dicom\]'"):
        read_header(cut)


def test_a_client_of_dicom_predicts_as_it_was_trained(tmp_path):
    """The window is part of the run, of the client and of its card; another window is another run."""
    rng = np.random.default_rng(0)
    for kind, level in (("benign", 1000), ("malignant", 1150)):
        for number in range(12):
            stored = rng.integers(level, level + 60, (16, 16)).astype(np.uint16)
            write(tmp_path / "set" / kind / f"{number}.dcm", stored)
    data = Folder(tmp_path / "set", window="40/400").load()
    assert data.inputs.shape == (24, 16, 16, 1)
    assert data.inputs[0, 0, 0, 0] > 0
    assert Folder(tmp_path / "set", window="40/400").description()["window"] == "40/400"
    source = {"name": "folder", "path": str(tmp_path / "set"), "window": "40/400"}
    settings = {"dataset": source, "clients": 2, "rounds": 1, "models": "plain", "feature_dim": 8, "validation": 0}
    run(pn.Experiment.of(settings), tmp_path / "runs")

    def call(*words):
        done = CliRunner().invoke(app, list(map(str, words)))
        assert done.exit_code == 0, done.output
        return done.output

    call("export", run_folder(pn.Experiment.of(settings), tmp_path / "runs"), tmp_path / "out", "--client", 0)
    assert "by the window 40/400, as in DICOM" in (tmp_path / "out" / "README.md").read_text()
    answers = json.loads(call("predict", tmp_path / "out", tmp_path / "set" / "malignant", "--json"))["pictures"]
    client = load_client(tmp_path / "out")
    expected = client.predict(data.inputs[12:]).tolist()
    assert [client.classes.index(one["class"]) for one in answers] == expected
