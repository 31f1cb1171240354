"""Downloads, from a server on this machine only: they go on where they stopped and keep only what is right."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from protonorm.core.progress import listening
from protonorm.data.published.prepare import download, fetch
from protonorm.errors import NotFetched
from tests.data import archives


class Quiet(SimpleHTTPRequestHandler):
    """Serve a folder; ranges only if `ranges` is set; note what was asked for."""

    ranges = True
    asked: list = []

    def log_message(self, *_):
        pass

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.asked.append(wanted)
        path = self.translate_path(self.path)
        try:
            content = Path(path).read_bytes()
        except OSError:
            self.send_error(404)
            return
        start = int(wanted[len("bytes=") : -1]) if wanted and self.ranges else 0
        if start >= len(content) > 0:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:])


@pytest.fixture
def server(tmp_path):
    """Serve a folder on a free port; give its address and the folder."""
    (tmp_path / "site").mkdir()
    kind = type("Handler", (Quiet,), {"asked": []})
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(kind, directory=str(tmp_path / "site")))
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}/", tmp_path / "site", kind
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_fetched_checked_and_not_fetched_again(server, tmp_path):
    address, site, kind = server
    paths, _ = archives.digits(site)
    sums = archives.content_sums(*paths)
    steps = []
    with listening(lambda *step: steps.append(step)):
        found = download("mnist", tmp_path / "to", mirror=address, checksums=sums)
    assert [path.read_bytes() for path in found] == [path.read_bytes() for path in paths]
    assert len(kind.asked) == 4
    assert steps[0][0] == "Downloading train-images-idx3-ubyte.gz"
    assert steps[0][1] == steps[0][2] == paths[0].stat().st_size
    download("mnist", tmp_path / "to", mirror=address, checksums=sums)
    assert len(kind.asked) == 4
    assert sorted(one.name for one in (tmp_path / "to").iterdir()) == sorted(path.name for path in paths)


@pytest.mark.parametrize("ranges", [True, False])
def test_goes_on_where_it_stopped(server, tmp_path, ranges):
    address, site, kind = server
    kind.ranges = ranges
    path, *_ = archives.cifar10_binary(site)
    part = tmp_path / "to" / f"{path.name}.part"
    part.parent.mkdir()
    part.write_bytes(path.read_bytes()[:5000])
    (found,) = download("cifar10", part.parent, mirror=address, checksums=archives.sums(path))
    assert kind.asked == ["bytes=5000-"]
    assert found.read_bytes() == path.read_bytes()
    assert not part.exists()


def test_a_whole_part_is_kept(server, tmp_path):
    address, site, _ = server
    (site / "a").write_bytes(b"whole")
    part = tmp_path / "a.part"
    part.write_bytes(b"whole")
    fetch(f"{address}a", part)
    assert part.read_bytes() == b"whole"


def test_what_is_wrong_is_thrown_away(server, tmp_path):
    address, site, _ = server
    archives.cifar10_binary(site)
    with pytest.raises(ValueError, match="is not the official file"):
        download("cifar10", tmp_path / "to", mirror=address)
    assert list((tmp_path / "to").iterdir()) == []
    assert download("cifar10", tmp_path / "to", mirror=address, checked=False)[0].exists()


def test_what_the_server_does_not_have(server, tmp_path):
    with pytest.raises(NotFetched, match="the server answers 404"):
        download("cifar10", tmp_path / "to", mirror=server[0])


def test_without_a_network(tmp_path):
    with pytest.raises(NotFetched, match="is there a network"):
        download("cifar10", tmp_path / "to", mirror="http://127.0.0.1:9/")
