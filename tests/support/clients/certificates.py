"""Certificates made with openssl, for an authority, a server on 127.0.0.1 and localhost, and a client."""
import subprocess
from ipaddress import IPv4Address

KINDS = {'server': 'subjectAltName=IP:127.0.0.1,DNS:localhost', 'client': 'subjectAltName=DNS:client',
         'stranger': 'subjectAltName=DNS:elsewhere.example.org'}


def make_certificates(directory):
    """Write `ca.pem`. For each kind of certificate, write `<kind>.pem` with the key and the chain, and also
    `<kind>.key` and `<kind>.crt`.
    """
    def openssl(*arguments):
        subprocess.run(['openssl', *arguments], cwd=directory, check=True, capture_output=True)

    new_key = ('-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '60')
    openssl('req', '-x509', *new_key, '-subj', '/CN=authority', '-keyout', 'ca.key', '-out', 'ca.pem',
            '-addext', 'keyUsage=critical,keyCertSign')
    for kind, extension in KINDS.items():
        openssl('req', '-x509', *new_key, '-subj', f'/CN={kind}', '-keyout', f'{kind}.key', '-out', f'{kind}.crt',
                '-CA', 'ca.pem', '-CAkey', 'ca.key', '-addext', extension, '-addext', 'basicConstraints=CA:FALSE')
        (directory / f'{kind}.pem').write_text(
            (directory / f'{kind}.key').read_text() + (directory / f'{kind}.crt').read_text())
    openssl('pkcs8', '-topk8', '-in', 'client.key', '-passout', 'pass:horse', '-out', 'client.enc')
    return directory


def certificate_between(name, begin, end):
    """Return a PEM text of a key and a self-signed certificate of `name` that is valid from `begin` to `end`, which are
    times with a zone.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    names = x509.SubjectAlternativeName([x509.DNSName('localhost'), x509.IPAddress(IPv4Address('127.0.0.1'))])
    certificate = (x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number(), begin, end)
                   .add_extension(names, critical=False).sign(key, hashes.SHA256()))
    pem = serialization.Encoding.PEM
    return (key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
            + certificate.public_bytes(pem)).decode()


def make_revocation_list(directory, kind):
    """Revoke the certificate of a kind. Return the file of the authority that signs revocation lists, and the file of
    its list.
    """
    (directory / 'ca.cnf').write_text(
        '[ca]\ndefault_ca=own\n[own]\ndatabase=index.txt\ndefault_md=sha256\ndefault_crl_days=2\n'
        'private_key=ca.key\ncertificate=ca.pem\n')
    (directory / 'index.txt').write_text('')

    def openssl(*arguments):
        subprocess.run(['openssl', *arguments], cwd=directory, check=True, capture_output=True)

    openssl('req', '-x509', '-key', 'ca.key', '-subj', '/CN=authority', '-out', 'signer.pem', '-days', '60',
            '-addext', 'keyUsage=critical,keyCertSign,cRLSign')
    openssl('ca', '-config', 'ca.cnf', '-cert', 'signer.pem', '-revoke', f'{kind}.crt')
    openssl('ca', '-config', 'ca.cnf', '-cert', 'signer.pem', '-gencrl', '-out', 'revoked.pem')
    return directory / 'signer.pem', directory / 'revoked.pem'
