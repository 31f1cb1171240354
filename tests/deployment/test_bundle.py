"""A bundle: all that an organisation needs and nothing secret; one that was changed has another checksum."""

import json

import pytest

from protonorm.deployment.agreement import LARGEST_BUNDLE, Agreement, Bundle
from protonorm.deployment.keys import make_authority, make_client_certificate, make_client_key

TERMS = {"algorithm": "fedproto", "classes": ["cat", "dog"], "feature_dim": 4, "rounds": 5, "seed": 7}


@pytest.fixture
def bundle(tmp_path):
    make_authority(tmp_path / "ca.key", tmp_path / "ca.crt", "eyes")
    line = make_client_key(tmp_path / "lima")
    return Bundle.of(
        Agreement.of(TERMS),
        federation="eyes",
        client=1,
        name="lima",
        public_key=line,
        host="fl.example.org",
        port=9092,
        authority=(tmp_path / "ca.crt").read_text(),
        certificate=make_client_certificate((tmp_path / "ca.key", tmp_path / "ca.crt"), line, "lima"),
    )


def changed(bundle, **change):
    return json.dumps(json.loads(bundle.write()) | change).encode()


def test_it_is_read_as_it_was_written_and_holds_no_secret(bundle, tmp_path):
    found = Bundle.read(bundle.write())
    assert found == bundle
    assert found.terms == Agreement.of(TERMS)
    assert found.fingerprint == bundle.fingerprint
    assert b"PRIVATE" not in bundle.write()
    for name in ("ca.key", "lima"):
        assert (tmp_path / name).read_text().splitlines()[1] not in bundle.write().decode()


def test_every_change_changes_the_checksum(bundle, tmp_path):
    other = make_client_key(tmp_path / "other")
    terms = Agreement.of(TERMS | {"rounds": 6}).plain()
    certificate = make_client_certificate((tmp_path / "ca.key", tmp_path / "ca.crt"), bundle.public_key, "lima")
    changes = {"federation": "ears", "client": 2, "name": "rome", "public_key": other, "host": "b.org", "port": 1}
    for change in (
        {name: value} for name, value in (changes | {"agreement": terms, "certificate": certificate}).items()
    ):
        assert Bundle.read(changed(bundle, **change)).fingerprint != bundle.fingerprint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "../lima"}, "name must .*, got '../lima'"),
        ({"name": "lima\n"}, "name must .*, got "),
        ({"client": -1}, "client must .*, got -1"),
        ({"host": "--insecure"}, "host must .*, got '--insecure'"),
        ({"port": 0}, "port must .*, got 0"),
        ({"format": 2}, "format must .*, got 2"),
        ({"public_key": "x"}, "no public key"),
        ({"authority": "x"}, "must hold certificates"),
        ({"certificate": "x"}, "must hold certificates"),
        ({"agreement": {"format": 1}}, "The agreement needs the setting"),
        ({"secret": 1}, "has no setting 'secret'"),
    ],
    ids=str,
)
def test_what_is_not_right_is_refused(bundle, change, said):
    with pytest.raises(ValueError, match=said):
        Bundle.read(changed(bundle, **change))


def test_a_certificate_of_another_authority_is_refused(bundle, tmp_path):
    make_authority(tmp_path / "c.key", tmp_path / "c.crt", "eyes")
    with pytest.raises(ValueError, match="must hold certificates of the federation's authority"):
        Bundle.read(changed(bundle, authority=(tmp_path / "c.crt").read_text()))


def test_what_is_no_bundle_is_refused():
    for content, said in {
        b"": "cannot be read",
        b"[" * 100_000: "cannot be read",
        b"3": "holds a int",
        b" " * (LARGEST_BUNDLE + 1): "at most are expected",
    }.items():
        with pytest.raises(ValueError, match=said):
            Bundle.read(content)


def test_another_key_is_refused(bundle, tmp_path):
    bundle.refuse_other_key(bundle.public_key)
    with pytest.raises(ValueError, match="The bundle is for the key SHA256:"):
        bundle.refuse_other_key(make_client_key(tmp_path / "other"))
