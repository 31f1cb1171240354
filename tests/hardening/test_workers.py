"""Workers that send garbage, die or fall silent: the parent says so in a sentence or goes on, and never hangs."""

import json
import math
import struct
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
import torch

from protonorm.core.task import Lost, Order
from protonorm.engines import processes
from protonorm.engines.processes import Processes
from protonorm.errors import Failed, TooFewReplies
from protonorm.runs.states import FolderStore
from protonorm.session.build import build
from tests.support import run, spiral

PATIENCE = 100.0  # seconds; more is a parent that hangs

FAKE = r"""
import json, os, struct, sys, time
out, into = sys.stdout.buffer, sys.stdin.buffer

def start(header, body):
    return struct.pack("<4sIQ", b"PNFL", header, body)

def frame(header, body=b"", text=None):
    text = json.dumps(header).encode() if text is None else text
    out.write(start(len(text), len(body)) + text + body)
    out.flush()

def hear():
    sizes = into.read(16)
    if len(sizes) < 16:
        os._exit(0)
    _, header, body = struct.unpack("<4sIQ", sizes)
    found = json.loads(into.read(header))
    into.read(body)
    return found

def orders():
    while True:
        found = hear()
        if found.get("orders"):
            return found

def answer(counts=b"", **more):
    found = orders()
    for id, *_ in found["orders"]:
        told = {"call": found["call"], "id": id, "metrics": {"loss": 1.0}, "seconds": 0.1} | more
        frame(told, counts if found["verb"] == "evaluate" else b"")

def live():
    while True:
        hear()

def ready():
    hear()
    frame({"ready": True})

"""

AT_THE_START = {  # the parent has not heard from it yet
    "dies": "os._exit(3)",
    "is killed": "os.kill(os.getpid(), 9)",
    "garbage": "out.write(os.urandom(999)); out.flush(); live()",
    "text": "out.write(b'Traceback (most recent call last): a library prints'); out.flush(); live()",
    "half a frame, then dies": "out.write(start(100, 100) + b'{'); out.flush(); os._exit(0)",
    "a huge frame": "out.write(start(2**32 - 1, 2**60)); out.flush(); live()",
    "a large frame that never comes": "out.write(start(2**25, 2**35)); out.flush(); os._exit(0)",
    "no header": "frame(None, text=b'[1, 2]'); live()",
    "no JSON": "frame(None, text=b'{{{'); live()",
    "deep JSON": "frame(None, text=b'[' * 100000); live()",
    "a body that is no tensors": "frame({'ready': True}, b'x' * 40); live()",
    "another frame": "frame({'call': 1, 'id': 0}); live()",
    "an error of no kind": "frame({'error': 5}); live()",
    "a refusal": "frame({'error': 'refused', 'text': 'It cannot be.'}); live()",
    "closes its output and lives": "os.close(1); time.sleep(1000)",
    "never says anything": "live()",
    "neither reads nor writes": "time.sleep(1000)",
}

AT_WORK = {  # it was ready
    "dies": "orders(); os._exit(3)",
    "ends itself by a signal": "orders(); os.kill(os.getpid(), 9)",
    "garbage": "orders(); out.write(os.urandom(999)); out.flush(); live()",
    "half a frame, then dies": "orders(); out.write(start(100, 100) + b'{'); out.flush(); os._exit(0)",
    "half a body, then dies": "orders(); out.write(start(2, 100) + b'{}123'); out.flush(); os._exit(0)",
    "a huge frame": "orders(); out.write(start(2, 2**60) + b'{}'); out.flush(); live()",
    "an unknown client": "answer(id=999); live()",
    "a client that is no number": "answer(id={'a': 1}); live()",
    "a client in words": "answer(id='0'); live()",
    "no client": "answer(id=None); live()",
    "an unknown call, then dies": "answer(call=77); os._exit(4)",
    "a call that is no number, then dies": "answer(call=[[]]); os._exit(4)",
    "a header that is no object": "orders(); frame(None, text=b'[]'); live()",
    "an empty header": "orders(); frame({}); os._exit(5)",
    "metrics that are no object": "answer(metrics=3); live()",
    "metrics that are no numbers": "answer(metrics={'loss': 'x'}); live()",
    "metrics that are not finite": "\nwhile True:\n    answer(metrics={'loss': float('nan')})",
    "a metric that is too large": "answer(metrics={'loss': 10**400}); live()",
    "seconds in words": "answer(seconds='long'); live()",
    "seconds that are no time": "\nwhile True:\n    answer(seconds=float('nan'))",
    "seconds that are nothing": "answer(seconds=None); live()",
    "an answer without tensors": "\nwhile True:\n    answer()",
    "an error of no kind, in no words": "answer(error=[], text={}); live()",
    "ready once more, for ever, then dies": "orders()\nfor _ in range(500):\n    frame({'ready': True})\nos._exit(1)",
    "gone, it says itself": "orders(); frame({'gone': True}); live()",
    "closes its output and lives": "orders(); os.close(1); time.sleep(1000)",
}


@pytest.fixture
def begin(monkeypatch):
    """Replace workers by processes that obey a script of their own; end them all when the test is over."""
    started = []

    def use(script, patience=100.0):
        def start_worker(module):
            command = [sys.executable, "-I", "-S", "-c", FAKE + script]
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            return started[-1]

        monkeypatch.setattr(processes, "start_worker", start_worker)
        monkeypatch.setattr(processes, "GRACE", 0.3)
        monkeypatch.setattr(processes, "START", patience)

    yield use
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):
                stream.close()


def within(do):
    """Do something in a thread, and fail if it does not come to an end; give what it returned or raised."""
    found = []

    def work():
        try:
            found.append(do())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found, "the parent hangs"
    return found[0]


def outcome(tmp_path, workers=1, **settings):
    experiment = spiral(clients=2, rounds=1, retries=1, **settings)
    return within(lambda: run(experiment, tmp_path, engine="processes", workers=workers))


@pytest.mark.parametrize("script", AT_THE_START.values(), ids=AT_THE_START)
def test_a_worker_that_does_not_begin_as_it_should(tmp_path, begin, script):
    begin(script, patience=1.0)
    found = outcome(tmp_path)
    kinds = (ValueError,) if "refused" in script else (RuntimeError,) if "'error': 5" in script else (Failed,)
    assert isinstance(found, kinds), repr(found)
    assert str(found)


def test_a_worker_that_is_killed_while_it_starts_is_replaced(tmp_path, begin, monkeypatch):
    """The system may end one of several processes that all load torch at once; the next one has room."""
    real = processes.start_worker
    begin("os.kill(os.getpid(), 9)")
    fake, count = processes.start_worker, []

    def start_worker(module):
        count.append(1)
        return (fake if len(count) in (1, 3) else real)(module)

    monkeypatch.setattr(processes, "start_worker", start_worker)
    found = outcome(tmp_path, workers=2)
    assert not isinstance(found, BaseException), repr(found)
    assert len(count) == 4  # two for each of two workers
    assert not found.history[0].lost


def test_workers_that_are_always_killed_while_they_start_end_the_run_in_a_sentence(tmp_path, begin):
    begin("os.kill(os.getpid(), 9)")
    found = outcome(tmp_path)
    assert isinstance(found, Failed)
    assert str(found) == "A worker process did not start: it was ended by signal 9, perhaps for lack of memory."


@pytest.mark.parametrize("script", AT_WORK.values(), ids=AT_WORK)
def test_a_worker_that_does_not_answer_as_it_should(tmp_path, begin, script):
    """An error that it tells of itself is raised as it is told; all else is a client that did not reply."""
    begin(f"ready()\n{script}")
    found = outcome(tmp_path)
    kinds = (RuntimeError,) if "error=[]" in script else (TooFewReplies, Failed)
    assert isinstance(found, kinds), repr(found)
    assert str(found)


def test_with_a_quorum_the_run_goes_on_without_the_clients_of_a_bad_worker(tmp_path, begin, monkeypatch):
    """Every second process that is started is a real worker; the clients of the others are lost."""
    real = processes.start_worker
    begin("ready()\norders(); out.write(os.urandom(999)); out.flush(); live()")
    fake, count = processes.start_worker, []

    def start_worker(module):
        count.append(1)
        return (real, fake)[len(count) % 2](module)

    monkeypatch.setattr(processes, "start_worker", start_worker)
    found = outcome(tmp_path, workers=2, quorum=0.1)
    assert not isinstance(found, BaseException), repr(found)
    assert found.history[0].lost


SIX = [1.0] * 6 + [0.0] * 9  # in bins: six samples of which it is quite sure, and all are right
GOOD = {  # what a client counted over six classes in one part: types, shapes, and the numbers, or one for all
    "support": ("I64", [6], 1),
    "unseen": ("I64", [], 0),
    "correct.logits": ("I64", [6], 1),
    "predicted.logits": ("I64", [6], 1),
    "nll.logits": ("F64", [], 1.5),
    "bins.logits": ("F64", [3, 15], [*SIX, *SIX, *SIX]),
}
BAD = {  # what is wrong with one of them; None if it is missing
    "no samples": {"support": None},
    "no unseen": {"unseen": None},
    "too many classes": {"support": ("I64", [7], 1)},
    "shares": {"support": ("F64", [6], 1)},
    "several of the unseen": {"unseen": ("I64", [2], 0)},
    "fewer than none": {"support": ("I64", [6], -1)},
    "more right than there are": {"correct.logits": ("I64", [6], 2)},
    "fewer answers than samples": {"predicted.logits": ("I64", [6], 0)},
    "answers that are no row": {"predicted.logits": ("I64", [], 6)},
    "nll that is no number": {"nll.logits": ("F64", [], math.nan)},
    "nll in whole numbers": {"nll.logits": ("I64", [], 1)},
    "too few bins": {"bins.logits": ("F64", [3, 14], 0.4)},
    "bins below nothing": {"bins.logits": ("F64", [3, 15], -0.4)},
    "bins of other samples": {"bins.logits": ("F64", [3, 15], 0.4)},
}


def of_both_parts(validation, test):
    """Merge the counts of the two parts, without what is missing."""
    parts = {"validation": validation, "test": test}
    return {f"{part}.{name}": one for part, counts in parts.items() for name, one in counts.items() if one is not None}


COUNTS = {"nothing": {}, "nothing of the test part": of_both_parts(GOOD, {})}
COUNTS |= {f"{name}, test": of_both_parts(GOOD, GOOD | wrong) for name, wrong in BAD.items()}
COUNTS |= {f"{name}, validation": of_both_parts(GOOD | wrong, GOOD) for name, wrong in list(BAD.items())[::4]}


def body(counts):
    """Write tensors by hand, as nobody else does."""
    header, content = {}, b""
    for name, (kind, shape, value) in counts.items():
        values = value if isinstance(value, list) else [value] * math.prod(shape)
        part = struct.pack(f"<{len(values)}{'q' if kind == 'I64' else 'd'}", *values)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(content), len(content) + len(part)]}
        content += part
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content if counts else b""


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_counts_that_are_no_counts_are_those_of_a_client_that_was_not_evaluated(tmp_path, begin, counts):
    """Training needs an answer that the schema allows: method `local` says nothing."""
    begin(f"ready()\nwhile True:\n    answer({body(counts)!r})")
    found = outcome(tmp_path, algorithm="local")
    assert isinstance(found, TooFewReplies), repr(found)
    assert "cannot be evaluated" in str(found)


def test_good_counts_are_taken(tmp_path, begin):
    """So that it is their faults for which those above are refused."""
    begin(f"ready()\nwhile True:\n    answer({body(of_both_parts(GOOD, GOOD))!r})")
    found = outcome(tmp_path, algorithm="local")
    assert not isinstance(found, BaseException), repr(found)
    assert found.history[0].rules["logits"].pooled == 1.0
    assert found.history[0].validation["logits"].log_loss == 0.25  # a nll of 1.5 over six samples


def test_a_worker_that_stops_reading_does_not_stop_the_parent(tmp_path, begin):
    """The message is larger than what a pipe holds; at the deadline the client is late."""
    begin("ready()\ntime.sleep(1000)")
    task, population = build(spiral(clients=2, rounds=1))

    def train():
        engine = Processes(task, population, FolderStore(tmp_path, "key"), workers=1)
        try:
            orders = [Order(id, 1, 0) for id in range(2)]
            return list(engine.train(orders, {"prototypes": torch.ones(1000, 1000)}, deadline=1.0))
        finally:
            engine.close()

    found = within(train)
    assert isinstance(found, list), repr(found)
    assert all(isinstance(one, Lost) for one in found)


def test_an_answer_to_an_earlier_call_does_not_count_in_the_next(tmp_path, begin):
    """The first call is late; its answer comes during the second one, before the answer to that."""
    losses = "((first['call'], 1.0), (orders()['call'], 2.0))"
    told = "frame({'call': call, 'id': 0, 'metrics': {'loss': loss}, 'seconds': 0.1})"
    begin(f"ready()\nfirst = orders()\nfor call, loss in {losses}:\n    {told}\nlive()")
    task, population = build(spiral(algorithm="local", clients=2, rounds=1))

    def train():
        engine = Processes(task, population, FolderStore(tmp_path, "key"), workers=1)
        try:
            return [next(engine.train([Order(0, 1, 0)], {}, deadline)) for deadline in (0.2, None)]
        finally:
            engine.close()

    late, answered = within(train)
    assert isinstance(late, Lost)
    assert answered.metrics == {"loss": 2.0}
