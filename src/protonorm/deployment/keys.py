"""Keys and certificates of a federation: its own authority, the server's certificate, and a key for each client.

All keys use the curve P-384. Private keys are readable by their owner only, never overwrite a file, and are never sent
or copied.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import ipaddress
import os
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protonorm.core.types import shown
from protonorm.files import PRIVATE_FILE

AUTHORITY_YEARS, YEARS = 10, 2
USAGES = (  # all key usages of X.509
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
LARGEST = 2**14  # bytes of a key or certificate file
SKEW = dt.timedelta(hours=1)  # tolerance for clocks that are behind

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey
Certificate = x509.Certificate
Authority = tuple[Path, Path]  # key and certificate
Time = dt.datetime | None  # None for now


def make_authority(key: Path, certificate: Path, name: str, now: Time = None) -> None:
    """Create a certificate authority for one federation: a private key and a public certificate."""
    private = ec.generate_private_key(ec.SECP384R1())
    subject = _name(f"{name} authority")
    builder = (
        _builder(subject, subject, private.public_key(), AUTHORITY_YEARS, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    )
    _write_key(key, private)
    _write_new(certificate, builder.sign(private, hashes.SHA384()).public_bytes(serialization.Encoding.PEM), 0o644)


def make_server_certificate(
    authority: Authority, key: Path, certificate: Path, hosts: Sequence[str], now: Time = None
) -> None:
    """Issue a server certificate for these hosts, signed by an authority (key, certificate)."""
    if not hosts:
        raise ValueError("A server needs at least one name or address that clients reach it by.")
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    private = ec.generate_private_key(ec.SECP384R1())
    issued = _issue(authority, hosts[0], private.public_key(), ExtendedKeyUsageOID.SERVER_AUTH, now, names)
    _write_key(key, private)
    _write_new(certificate, issued, 0o644)


def make_client_certificate(authority: Authority, line: str, name: str, now: Time = None) -> str:
    """Issue a certificate for a client's public key, signed by an authority (key, certificate); return it as PEM."""
    key = serialization.load_ssh_public_key(check_public_line(line).encode())
    assert isinstance(key, PublicKey)
    return _issue(authority, name, key, ExtendedKeyUsageOID.CLIENT_AUTH, now).decode()


def _issue(
    authority: Authority, name: str, key: PublicKey, use: x509.ObjectIdentifier, now: Time, *more: x509.ExtensionType
) -> bytes:
    signer, issuer = read_private(authority[0]), read_certificate(authority[1])
    builder = (
        _builder(_name(name), issuer.subject, key, YEARS, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    for extension in (x509.ExtendedKeyUsage([use]), *more):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(signer, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def make_client_key(path: Path) -> str:
    """Create a client's private key on its own machine; return the public key for the server's owner."""
    private = ec.generate_private_key(ec.SECP384R1())
    _write_key(path, private)
    return public_line(private.public_key())


def public_line(key: PublicKey) -> str:
    """Format a public key in OpenSSH format."""
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def check_public_line(line: str) -> str:
    """Validate a received public key and return it without its comment; raise ValueError if it is invalid."""
    if "PRIVATE KEY" in line:
        raise ValueError("This is a private key, which must never leave its machine: make a new one there.")
    words = line.split() if len(line) <= LARGEST else []
    unknown = f"{shown(line)} is no public key; expected a line such as ecdsa-sha2-nistp384 AAAA…."
    if len(words) < 2 or "\n" in line.strip():
        raise ValueError(unknown)
    try:
        key = serialization.load_ssh_public_key(" ".join(words[:2]).encode())
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(unknown) from None
    if not isinstance(key, PublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ValueError(f"The public key must be of the kind ecdsa-sha2-nistp384, got {shown(words[0])}.")
    return public_line(key)


def key_fingerprint(line: str) -> str:
    """Return the fingerprint of a public key, as `ssh-keygen -l` shows it."""
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def certificate_fingerprint(text: str) -> str:
    """Return the SHA-256 of a certificate, PEM, in hexadecimal digits."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text)).hexdigest()


def read_certificate(path: Path) -> Certificate:
    """Read a certificate; raise ValueError if it is invalid."""
    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError as error:
        raise ValueError(f"{path} is no certificate: {error}") from None


def same_key(key: Path, certificate: Certificate) -> bool:
    """Return whether a private key belongs to a certificate."""
    return read_private(key).public_key() == certificate.public_key()


def problems_of(authority: Certificate, server: Certificate, host: str, now: Time = None) -> list[str]:
    """List the problems of a server's certificate for a client that trusts the authority."""
    problems = _problems(authority, server, "server's", now)
    if host not in (names := hosts_of(server)):
        problems.append(f"The server's certificate is for {', '.join(names) or 'nobody'}, not for {host}.")
    return problems


def problems_of_client(authority: Path, certificate: Path, key: Path, now: Time = None) -> list[str]:
    """List the problems of a client's own certificate, as the server would find them."""
    own = read_certificate(certificate)
    problems = _problems(read_certificate(authority), own, "client's", now)
    return problems if same_key(key, own) else [*problems, "The client's key does not belong to its certificate."]


def _problems(authority: Certificate, own: Certificate, whose: str, now: Time) -> list[str]:
    now = now or dt.datetime.now(dt.UTC)
    problems = []
    try:
        own.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        problems.append(f"The {whose} certificate is not from this federation's authority.")
    for owner, certificate in ((whose, own), ("authority's", authority)):
        first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if now > last:
            problems.append(f"The {owner} certificate expired on {last:%F}, and this machine's clock says {now:%F}.")
        elif now < first:
            problems.append(f"The {owner} certificate is valid from {first:%F} on; this machine's clock says {now:%F}.")
    return problems


def hosts_of(certificate: Certificate) -> list[str]:
    """List the host names and addresses in a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]


def _builder(subject: x509.Name, issuer: x509.Name, key: PublicKey, years: int, now: Time) -> x509.CertificateBuilder:
    now = now or dt.datetime.now(dt.UTC)
    start = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    start = start.serial_number(x509.random_serial_number())
    start = start.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    return start.not_valid_before(now - SKEW).not_valid_after(now + dt.timedelta(days=365 * years))


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in allowed for name in USAGES})


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.rstrip(".").split(".")
    if len(host) > 253 or not all(0 < len(label) < 64 and label.replace("-", "").isalnum() for label in labels):
        raise ValueError(f"{shown(host)} is neither a host's name nor an address.")
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ValueError(f"{shown(host)} is neither a host's name nor an address in ASCII.") from None


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64] or "-")])


def _write_key(path: Path, key: Key) -> None:
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    _write_new(path, key.private_bytes(serialization.Encoding.PEM, form, plain), PRIVATE_FILE)


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Create a file; raise ValueError if it exists."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise ValueError(f"{path} is there already; it is left as it is.") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} is too large for a key or a certificate.")
    return path.read_bytes()


def check_private(path: Path) -> None:
    """Raise ValueError if other users can read a file, or if it does not exist."""
    if not path.is_file():
        raise ValueError(f"There is no key {path}.")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise ValueError(f"{path} can be read by others than its owner: chmod 600 it, or make a new one.")


def read_private(path: Path) -> Key:
    """Read a private key; raise ValueError if other users can read the file."""
    check_private(path)
    try:
        key = serialization.load_pem_private_key(_read(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError(f"{path} is no private key of a kind that is used here.") from None
    if not isinstance(key, Key):
        raise ValueError(f"{path} is a key of another kind; expected one of the curve P-384.")
    return key
