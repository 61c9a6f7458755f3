"""An S3-compatible store with one object, which it serves only to requests with the right signature.

The check shares no code with the loader: it uses the hashes of Python's library.
"""

import hashlib
import hmac
import http.server

KEY, SECRET = "key", "sec/ret"
# CRC-32C of BODY, as S3 tells it to those who ask: for the whole object, and not with a range.
CRC32C = "ZApzyQ=="
PATH = "/models/a%20b"
BODY = bytes(range(256)) * 4000
EMPTY_BODY = hashlib.sha256(b"").hexdigest()


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
        request = f"{self.command}\n{self.path}\n\n{fields}\n{names}\n{EMPTY_BODY}"
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
        if self.path == PATH and self.is_signed():
            return False
        self.send_response(403, "SignatureDoesNotMatch")
        self.send_header("Content-Length", "0")
        self.end_headers()
        return True

    def do_HEAD(self):
        if self.refuses():
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        names = self.headers["Authorization"].partition("SignedHeaders=")[2].partition(",")[0]
        asks = "x-amz-checksum-mode" in names.split(";")
        if asks and self.headers["x-amz-checksum-mode"] == "ENABLED":
            self.send_header("x-amz-checksum-crc32c", CRC32C)
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
