import pytest

from protonorm.deployment.agreement import Agreement
from protonorm.deployment.federation_folder import FederationFolder
from protonorm.deployment.keys import make_client_key
from protonorm.deployment.settings import FederationSettings
from tests.deployment.keyring import Keys


@pytest.fixture(scope="module")
def key_files(tmp_path_factory):
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def keys(key_files):
    """Keys of a module's tests, whose connections end with the test."""
    yield key_files
    key_files.close()


@pytest.fixture
def told():
    return []


@pytest.fixture
def server(keys, told):
    with keys.server(log=told.append) as made:
        yield made


@pytest.fixture
def client(keys, server):
    made = keys.connection(server)
    assert made.ask(wait=0) is None
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path):
    """Folder of a federation with two members."""
    terms = {"algorithm": "protonorm", "classes": ["a", "b"], "feature_dim": 8, "rounds": 3, "seed": 0}
    settings = FederationSettings.of({"name": "hospitals", "hosts": ["localhost"], "bind": "127.0.0.1"})
    made = FederationFolder.create(tmp_path / "federation", settings, Agreement.of(terms))
    for name in ("berlin", "kyoto"):
        made.add(name, make_client_key(tmp_path / f"{name}.key"))
    return made
