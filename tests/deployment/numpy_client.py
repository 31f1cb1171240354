"""A client of a federation, written from docs/wire.md with NumPy alone: neither torch nor protonorm.

It takes part in ProtoNorm with a network of two linear layers, on samples in an .npz file: inputs (N, D) and labels
(N,), numbered as the agreement does. As a program: python numpy_client.py BUNDLE KEY DATA FOLDER
"""

import hashlib
import http.client
import json
import ssl
import struct
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

USAGE = """usage: python numpy_client.py BUNDLE KEY DATA FOLDER

BUNDLE  file from the server's owner, such as bundles/berlin.json
KEY     the client's private key, client.key of the folder that `protonorm deploy join` makes
DATA    .npz file with inputs (N, D) and labels (N,), numbered as the classes of the agreement
FOLDER  for the client's states; it is made if it is not there"""
AGAIN = 2.0  # seconds between two attempts to reach the server

TYPES = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8"), "I64": np.dtype("<i8")}


def write_frame(header, tensors):
    index, data = {}, b""
    for name, value in tensors.items():
        kind = next(kind for kind, dtype in TYPES.items() if dtype == value.dtype)
        end = len(data) + value.nbytes
        index[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [len(data), end]}
        data += np.ascontiguousarray(value).tobytes()
    text, about = (json.dumps(one).encode() for one in (header, index))
    body = struct.pack("<Q", len(about)) + about + data if tensors else b""
    return struct.pack("<4sIQ", b"PNFL", len(text), len(body)) + text + body


def read_frame(frame):
    mark, length, body = struct.unpack_from("<4sIQ", frame)
    if mark != b"PNFL" or len(frame) != 16 + length + body:
        raise ValueError("This is no frame.")
    header, tensors, start = json.loads(frame[16 : 16 + length]), {}, 16 + length
    if body:
        (size,) = struct.unpack_from("<Q", frame, start)
        data = start + 8 + size
        for name, one in json.loads(frame[start + 8 : data]).items():
            if name != "__metadata__":
                first, last = one["data_offsets"]
                tensors[name] = np.frombuffer(frame[data + first : data + last], TYPES[one["dtype"]])
                tensors[name] = tensors[name].reshape(one["shape"])
    return header, tensors


def digest_of(agreement):
    return hashlib.sha256(json.dumps(agreement, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class Client:
    """Answer requests: bytes in, bytes out."""

    def __init__(self, agreement, number, inputs, labels, folder, *, lr=0.02, epochs=3, batch=16, seed=0):
        self.agreement, self.digest, self.number = agreement, digest_of(agreement), number
        self.classes, self.width = len(agreement["classes"]), agreement["feature_dim"]
        self.gamma, self.lam = agreement["algorithm"]["gamma"], agreement["algorithm"]["lam"]
        self.lr, self.epochs, self.batch, self.seed = lr, epochs, batch, seed
        order = np.random.default_rng(seed).permutation(len(labels))
        inputs, labels, cut = inputs[order].astype(np.float64), labels[order], 3 * len(labels) // 4
        inputs = (inputs - inputs[:cut].mean(0)) / (inputs[:cut].std(0) + 1e-6)  # other scales make long prototypes
        self.train, self.test = (inputs[:cut], labels[:cut]), (inputs[cut:], labels[cut:])
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)

    def answer(self, frame):
        about = {"format": 1, "agreement": self.digest, "client": self.number, "round": 0, "kind": "train"}
        last, key = self.folder / "last.bin", hashlib.sha256(frame).digest()
        if last.exists() and last.read_bytes()[:32] == key:
            return last.read_bytes()[32:]
        try:
            asked, message = read_frame(frame)
            about |= {"round": asked["round"], "kind": asked["kind"]}
            if asked["agreement"] != self.digest or asked["client"] != self.number:
                raise ValueError("The request is for another client or agreement.")
            said = write_frame(*self.act(asked, message, about))
        except (ValueError, KeyError, OSError) as error:
            return write_frame({**about, "declined": f"It cannot do that ({type(error).__name__})."}, {})
        last.write_bytes(key + said)
        return said

    def act(self, asked, message, about):
        state, start, tensors = self.load(asked["trained"]), time.perf_counter(), {}
        if "evaluate" in asked["kind"] and "test" in asked["parts"]:
            counts = self.count(state, message)
            tensors = {f"counts.test.{name}": np.asarray(value) for name, value in counts.items()}
        if "train" in asked["kind"]:
            loss = self.fit(state, message, asked["round"])
            state |= self.means(state)
            np.savez(self.folder / f"{asked['round']}.npz", **state)
            tensors |= {f"said.{name}": state[name] for name in ("classes", "prototypes")}
            about = {**about, "metrics": {"loss": loss}, "seconds": time.perf_counter() - start}
        return about, tensors

    def load(self, round):
        if round:
            with np.load(self.folder / f"{round}.npz") as held:
                return dict(held)
        random = np.random.default_rng([self.seed, 1])
        inputs = self.train[0].shape[1]
        return {
            "w": random.normal(size=(inputs, self.width)) / np.sqrt(inputs),
            "b": np.zeros(self.width),
            "head": random.normal(size=(self.width, self.classes)) / np.sqrt(self.width),
            "bias": np.zeros(self.classes),
        }

    def fit(self, state, message, round):
        """Descend the mean of cross-entropy + λ‖z − γc‖²/d; give the mean loss."""
        targets, known = np.zeros((self.classes, self.width)), np.zeros(self.classes, bool)
        if "classes" in message:
            targets[message["classes"]] = self.gamma * message["prototypes"].astype(np.float64)
            known[message["classes"]] = True
        x, y = self.train
        random, losses = np.random.default_rng([self.seed, 2, round]), []
        for _ in range(self.epochs):
            for rows in np.array_split(random.permutation(len(y)), max(1, len(y) // self.batch)):
                z = x[rows] @ state["w"] + state["b"]  # (B, d)
                scores = z @ state["head"] + state["bias"]  # (B, K)
                shares = np.exp(scores - scores.max(1, keepdims=True))
                shares /= shares.sum(1, keepdims=True)
                apart = np.where(known[y[rows], None], z - targets[y[rows]], 0.0)
                right = np.maximum(shares[np.arange(len(rows)), y[rows]], 1e-12)
                losses.append(float((-np.log(right) + self.lam * (apart**2).sum(1) / self.width).mean()))
                shares[np.arange(len(rows)), y[rows]] -= 1
                by_scores = shares / len(rows)
                by_z = by_scores @ state["head"].T + 2 * self.lam * apart / (self.width * len(rows))
                state["head"] = state["head"] - self.lr * z.T @ by_scores
                state["bias"] = state["bias"] - self.lr * by_scores.sum(0)
                state["w"] = state["w"] - self.lr * x[rows].T @ by_z
                state["b"] = state["b"] - self.lr * by_z.sum(0)
        return float(np.mean(losses))

    def means(self, state):
        x, y = self.train
        z, classes = x @ state["w"] + state["b"], np.unique(y)
        return {
            "classes": classes.astype("<i8"),
            "prototypes": np.stack([z[y == one].mean(0) for one in classes]).astype("<f4"),
        }

    def count(self, state, message):
        x, y = self.test
        z = x @ state["w"] + state["b"]
        answers = {"logits": (z @ state["head"] + state["bias"]).argmax(1)}
        for rule, held in (("nearest-global", message), ("nearest-local", state)):
            if "classes" in held:
                gaps = ((z[:, None] - held["prototypes"][None].astype(np.float64)) ** 2).sum(2)
                answers[rule] = np.asarray(held["classes"])[gaps.argmin(1)]
        own = state.get("classes", [])
        found = {"support": self.tally(y), "unseen": np.int64((~np.isin(y, own)).sum())}
        for rule, said in answers.items():
            found |= {f"correct.{rule}": self.tally(y[said == y]), f"predicted.{rule}": self.tally(said)}
        return found

    def tally(self, labels):
        return np.bincount(labels, minlength=self.classes).astype("<i8")


class Connection:
    """Make the two calls: ask for work, and send an answer."""

    def __init__(self, bundle, key):
        with tempfile.TemporaryDirectory() as folder:
            authority, own = Path(folder, "authority"), Path(folder, "own")
            authority.write_text(bundle["authority"])
            own.write_text(bundle["certificate"])
            context = ssl.create_default_context(cafile=authority)
            context.load_cert_chain(own, key)
        self.place, self.reached = f"{bundle['host']}:{bundle['port']}", True
        self.http = http.client.HTTPSConnection(bundle["host"], bundle["port"], context=context, timeout=60)

    def call(self, method, path, frame=None, **headers):
        """Make a call, again and again until the server can be reached; end if it refuses or is another one."""
        named = {f"Protonorm-{name}": value for name, value in headers.items()}
        while True:
            try:
                self.http.request(method, path, frame, {"Protonorm-Format": "1", "Protonorm-Version": "numpy", **named})
                response = self.http.getresponse()
                content, self.reached = response.read(), True
            except ssl.SSLCertVerificationError as error:
                raise SystemExit(f"{self.place} is not the server of the bundle: {error.verify_message}.") from None
            except (OSError, http.client.HTTPException) as error:
                self.http.close()
                if self.reached:
                    sys.stderr.write(f"{self.place} cannot be reached ({error}); trying again.\n")
                self.reached = False
                time.sleep(AGAIN)
                continue
            if response.status not in (200, 204):
                raise SystemExit(content.decode())
            return content, response.headers.get("Protonorm-Request")

    def ask(self):
        """Wait for a request; give its frame and its name."""
        while True:
            frame, name = self.call("GET", "/v1/work")
            if frame:
                return frame, name

    def reply(self, frame, name):
        """Send a frame as the answer to a request."""
        self.call("POST", "/v1/answer", frame, Request=name)


def main(bundle, key, data, folder):
    """Take part until the server has sent what the trained network is to use."""
    told = json.loads(Path(bundle).read_text())
    method = told["agreement"]["algorithm"]
    if method["name"] != "protonorm" or not isinstance(method["gamma"], float):
        raise SystemExit("This client takes part in protonorm alone, with a number as gamma.")
    with np.load(data) as held:
        client = Client(told["agreement"], told["client"], held["inputs"], held["labels"], folder)
    connection = Connection(told, key)
    while True:
        frame, name = connection.ask()
        connection.reply(client.answer(frame), name)
        asked = read_frame(frame)[0]
        if asked["kind"] == "keep":
            return


if __name__ == "__main__":
    if len(sys.argv) != 5:
        raise SystemExit(USAGE)
    main(*sys.argv[1:])
