"""A certificate authority of one's own, for `tidelog up --secure` and for tests.

Keys are on the curve P-256. What signs others can do nothing else, what is for hosts or users can sign
nothing. The package `cryptography` is needed (`pip install 'tidelog[security]'`) and imported on use.
"""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.hashes import SHA256

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 825
#: clocks differ: certificates count from a little earlier on
_EARLIER = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A key and its certificate in PEM; the certificates that signed it follow."""

    key: str = field(repr=False)
    certificate: str

    @property
    def keystore(self) -> str:
        """Both, as ssl.keystore.location has them."""
        return self.key + self.certificate


def write_secret(path: Path, text: str) -> None:
    """Write a file that nobody else can read, whole or not at all."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class Authority:
    """Signs certificates."""

    def __init__(self, key: "EllipticCurvePrivateKey", certificate: "x509.Certificate") -> None:
        self._key = key
        self._certificate = certificate

    @classmethod
    def create(cls, name: str = "Tidelog local authority") -> "Authority":
        """A new authority that trusts in itself."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        builder = _builder(subject, subject, key, AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(signs_others=True), critical=True)
        return cls(key, builder.sign(key, _sha256()))

    @classmethod
    def load(cls, keystore: str) -> "Authority":
        """An authority from the PEM that `keystore` gave."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key = load_pem_private_key(keystore.encode(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey), "an authority of ours has a key on a curve"
        return cls(
            key, x509.load_pem_x509_certificate(keystore[keystore.index("-----BEGIN CERT") :].encode())
        )

    @property
    def certificate(self) -> str:
        """In PEM, for everybody to trust."""
        return _pem(self._certificate)

    @property
    def keystore(self) -> str:
        """Key and certificate, to be kept secret."""
        return _key_pem(self._key) + self.certificate

    def issue(
        self, name: str, hosts: Sequence[str] = (), *, organization: str = "", days: int = CERTIFICATE_DAYS
    ) -> Certificate:
        """A certificate for a broker at these hosts, or for a user."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]
        if organization:
            names.insert(0, x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, organization))
        builder = _builder(x509.Name(names), self._certificate.subject, key, days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(signs_others=False), critical=True)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
            alternatives = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(alternatives, critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer_key, critical=False)
        signed = builder.sign(self._key, _sha256())
        return Certificate(_key_pem(key), _pem(signed) + self.certificate)


def _builder(
    subject: "x509.Name", issuer: "x509.Name", key: "EllipticCurvePrivateKey", days: int
) -> "x509.CertificateBuilder":
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, signs_others: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_others,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=not signs_others,
        key_cert_sign=signs_others,
        crl_sign=signs_others,
        encipher_only=False,
        decipher_only=False,
    )


def _host(name: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _sha256() -> "SHA256":
    from cryptography.hazmat.primitives.hashes import SHA256

    return SHA256()


def _pem(certificate: "x509.Certificate") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()


def _key_pem(key: "EllipticCurvePrivateKey") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
