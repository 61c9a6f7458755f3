"""An S3-compatible store, which serves its objects only to requests with the right signature.

All objects have the same bytes, and each has another checksum, by its name: `crc32c`, `crc64nvme`, `crc32`, `sha256`, `sha1`; with `-parts` it was
uploaded in parts, and the store has the checksum of their checksums; with `-wrong` one byte was another one when the checksum was computed; and with
`-untold` the store does not know its parts any more.

The checks share no code with the loader: they use the hashes of Python's library, and CRCs bit by bit.
"""

import base64
import functools
import hashlib
import hmac
import http.server
import zlib

KEY, SECRET = "key", "sec/ret"
BODY = bytes(range(256)) * 4000
WRONG = BODY[:400_000] + b"?" + BODY[400_001:]
# Of different lengths.
PARTS = [(0, 300_000), (300_000, 900_000), (900_000, len(BODY))]
EMPTY_BODY = hashlib.sha256(b"").hexdigest()


def crc(polynomial, bits, data):
    """A CRC with the low bit first, all ones before and inverted after."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (polynomial if byte & 1 else 0)
        table.append(byte)
    ones = (1 << bits) - 1
    value = ones
    for byte in data:
        value = value >> 8 ^ table[(value ^ byte) & 255]
    return (value ^ ones).to_bytes(bits // 8, "big")


SUMS = {
    "crc32c": lambda data: crc(0x82F63B78, 32, data),
    "crc64nvme": lambda data: crc(0x9A6C9329AC4BC9B5, 64, data),
    "crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "sha1": lambda data: hashlib.sha1(data).digest(),
}


@functools.cache
def part_sum(name, number):
    """The checksum of a part, from 1; of 0 that of all bytes."""
    kind, *words = name.split("-")
    first, end = PARTS[number - 1] if number else (0, len(BODY))
    data = WRONG if "wrong" in words else BODY
    return SUMS[kind](data[first:end])


def field(name, number):
    """The checksum of an object, or of a part of it, as the store writes it."""
    kind, *words = name.split("-")
    if "parts" in words and not number:
        sums = b"".join(part_sum(name, part) for part in range(1, len(PARTS) + 1))
        return base64.b64encode(SUMS[kind](sums)).decode() + f"-{len(PARTS)}"
    return base64.b64encode(part_sum(name, number)).decode()


def mac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class Store(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def is_signed(self):
        algorithm, _, rest = self.headers.get("Authorization", "").partition(" ")
        parts = dict(part.split("=", 1) for part in rest.split(", "))
        key, *scope = parts["Credential"].split("/")
        names = parts["SignedHeaders"]
        fields = "".join(f"{name}:{self.headers[name]}\n" for name in names.split(";"))
        path, _, query = self.path.partition("?")
        request = f"{self.command}\n{path}\n{query}\n{fields}\n{names}\n{EMPTY_BODY}"
        lines = [
            algorithm,
            self.headers["x-amz-date"],
            "/".join(scope),
            hashlib.sha256(request.encode()).hexdigest(),
        ]
        signer = b"AWS4" + SECRET.encode()
        for word in scope:
            signer = mac(signer, word)
        right = mac(signer, "\n".join(lines)).hex()
        return key == KEY and hmac.compare_digest(right, parts["Signature"])

    def refuses(self):
        bucket, _, name = self.path.partition("?")[0][1:].partition("/")
        # A name that must be written with %XX.
        self.name = "crc32c" if name == "a%20b" else name
        if bucket == "models" and self.name.split("-")[0] in SUMS and self.is_signed():
            return False
        self.send_response(403, "SignatureDoesNotMatch")
        self.send_header("Content-Length", "0")
        self.end_headers()
        return True

    def do_HEAD(self):
        if self.refuses():
            return
        number = int(self.path.partition("?partNumber=")[2] or 0)
        if number and "untold" not in self.name:
            first, end = PARTS[number - 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(BODY)}")
            self.send_header("x-amz-mp-parts-count", str(len(PARTS)))
        else:
            (first, end), number = (0, len(BODY)), 0
            self.send_response(200)
        self.send_header("Content-Length", str(end - first))
        # It is told to those who ask for it: for the whole object or a part of it, and not with a range.
        names = self.headers["Authorization"].partition("SignedHeaders=")[2].partition(",")[0]
        asks = "x-amz-checksum-mode" in names.split(";")
        if asks and self.headers["x-amz-checksum-mode"] == "ENABLED":
            kind, *words = self.name.split("-")
            self.send_header(f"x-amz-checksum-{kind}", field(self.name, number))
            self.send_header("x-amz-checksum-type", "COMPOSITE" if "parts" in words else "FULL_OBJECT")
        self.end_headers()

    def do_GET(self):
        if self.refuses():
            return
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        body = BODY[int(first) : int(last) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(BODY)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Store).serve_forever()
