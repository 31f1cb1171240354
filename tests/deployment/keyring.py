"""An authority, a server's certificate and the keys of three clients, with servers and connections that use them."""

import datetime as dt
import socket
import ssl
import time

from protonorm.deployment.federation_folder import Member
from protonorm.deployment.https.client import Connection
from protonorm.deployment.https.protocol import tls_context
from protonorm.deployment.https.server import Server
from protonorm.deployment.keys import (
    make_authority,
    make_client_certificate,
    make_client_key,
    make_server_certificate,
)
from protonorm.deployment.settings import TlsFiles

LARGEST = 2**20


class Keys:
    """Files of a federation; the last of three clients is on no roster."""

    def __init__(self, folder):
        self.folder, self.authority, self.opened = folder, folder / "authority.crt", []
        self.signer = folder / "authority.key", self.authority
        make_authority(*self.signer, "test")
        self.certificate = self.certify("server", ["127.0.0.1"])
        self.lines = [make_client_key(folder / f"{id}.key") for id in range(3)]
        for id in range(3):
            self.admit(id)
        self.members = [Member(id, f"client-{id}", line) for id, line in enumerate(self.lines[:2])]

    def admit(self, id, now=None, signer=None):
        text = make_client_certificate(signer or self.signer, self.lines[id], f"client-{id}", now)
        (self.folder / f"{id}.crt").write_text(text)

    def tls(self, id=0):
        return TlsFiles(self.authority, self.folder / f"{id}.crt", self.folder / f"{id}.key")

    def certify(self, name, hosts, now=None):
        made = TlsFiles(self.authority, self.folder / f"{name}.crt", self.folder / f"{name}.key")
        make_server_certificate(self.signer, made.key, made.certificate, hosts, now=now)
        return made

    def server(self, port=0, files=None, **options):
        roster = options.pop("roster", lambda: self.members)
        return Server("127.0.0.1", port, files or self.certificate, roster, LARGEST, **options)

    def connection(self, server, id=0, host="127.0.0.1", **options):
        port = server if isinstance(server, int) else server.port
        made = Connection(host, port, *self.tls(id), **{"largest": LARGEST, "largest_answer": LARGEST} | options)
        self.opened.append(made)
        return made

    def line(self, server, id=0):
        """Open a TLS connection by hand."""
        context = tls_context(ssl.PROTOCOL_TLS_CLIENT, *self.tls(id))
        plain = socket.create_connection(("127.0.0.1", server.port), 10)
        try:
            self.opened.append(context.wrap_socket(plain, server_hostname="127.0.0.1"))
        except OSError:
            plain.close()
            raise
        return self.opened[-1]

    def close(self):
        """Close all connections of clients."""
        while self.opened:
            self.opened.pop().close()


def years(number):
    return dt.datetime.now(dt.UTC) + dt.timedelta(days=366 * number)


def until(holds, seconds=20.0):
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def drip(line, data, pause):
    """Send the same again and again, until the connection is cut."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        line.sendall(data)
        time.sleep(pause)
