"""Clients have names in a record, or else numbers."""

import pytest

from protonorm.files import parse_json, sealed
from protonorm.runs.layout import INFO
from protonorm.runs.run import read_run
from tests.records import made, record

NAMES = ["berlin", "1", "São Paulo"]


def test_names_are_kept_and_found(tmp_path):
    run = made(tmp_path / "run", clients=3, client_names=NAMES)
    assert [run.client_name(id) for id in range(3)] == NAMES
    assert [run.find_client(name) for name in NAMES] == [0, 1, 2]


@pytest.mark.parametrize(("asked", "id"), [(0, 0), (2, 2), ("2", 2), ("0", 0)])
def test_numbers_are_found_too(tmp_path, asked, id):
    assert made(tmp_path / "named", clients=3, client_names=NAMES).find_client(asked) == id
    assert made(tmp_path / "plain", clients=3).find_client(asked) == id


def test_of_a_text_a_name_counts_first(tmp_path):
    """Client 0 is called 1: the text means its name, and the number its number."""
    run = made(tmp_path / "run", clients=2, client_names=["1", "0"])
    assert (run.find_client("1"), run.find_client(1)) == (0, 1)


def test_without_names_clients_have_their_numbers(tmp_path):
    run = made(tmp_path / "run", clients=12)
    assert [run.client_name(id) for id in (0, 11)] == ["0", "11"]


def test_a_record_without_the_field_means_numbers(tmp_path):
    """Records from before clients had names are read as they are."""
    path = record(tmp_path / "run") / INFO
    plain = parse_json(path.read_bytes(), path)
    assert plain.pop("client_names", "missing") is None
    plain.pop("checksum")
    path.write_bytes(sealed(plain, pretty=True))
    assert read_run(tmp_path / "run").client_name(3) == "3"


@pytest.mark.parametrize("asked", [4, -1, "4", "-1", "٣", "1.0", "", True])
def test_nobody_is_refused_with_those_there_are(tmp_path, asked):
    run = made(tmp_path / "run", clients=4)
    with pytest.raises(ValueError, match=r"There is no client .*; the run has clients 0 to 3\."):
        run.find_client(asked)


def test_a_wrong_name_is_refused_with_the_nearest(tmp_path):
    run = made(tmp_path / "run", clients=3, client_names=NAMES)
    with pytest.raises(ValueError, match=r"There is no client Berlin; did you mean 'berlin'\? Known: 1, São Paulo, be"):
        run.find_client("Berlin")


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "a"], ["a", "b", ""], ["a", "b", 3], []])
def test_names_that_cannot_be_are_damage(tmp_path, names):
    path = record(tmp_path / "run", clients=3) / INFO
    plain = parse_json(path.read_bytes(), path)
    plain.pop("checksum")
    path.write_bytes(sealed(plain | {"client_names": names}, pretty=True))
    with pytest.raises(ValueError, match=r"experiment\.json is damaged"):
        read_run(tmp_path / "run")
