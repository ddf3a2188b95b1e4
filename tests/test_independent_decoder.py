"""A decoder written from docs/exactness.md and docs/learning.md alone reads what rhnzip writes.

It shares with rhnzip only the reader of the container, which tests/archive checks against docs/format.md.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from dataclasses import replace
from decimal import Decimal, getcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open

import rhnzip
from rhnzip.adaptation import from_parameters, to_parameters
from rhnzip.archive import ArchiveReader, CodedBlock, FrameHeader
from rhnzip.coding.codec import LearningCodec
from rhnzip.exact.backend import Settings
from rhnzip.exact.cpu import CpuBackend
from rhnzip.models.modelfile import Model, save_model
from rhnzip.models.quantisation import exact_weights
from rhnzip.models.rhn import RHN, RHNConfig
from rhnzip.models.scratch import scratch_model

DOCS = Path(__file__).parent.parent / "docs"
F = np.float32
Array = NDArray[Any]
TEXT = b"Six thick thistle sticks; six thick thistles stick. Sixty-six sticks, thistles thick. " * 3


# docs/exactness.md


def clamp(x: Array, c: float) -> Array:
    return np.minimum(np.maximum(x, F(-c)), F(c))


def keep(x: Array) -> Array:
    x = clamp(x, 2.0**40)
    return np.where(np.abs(x) < F(2.0**-60), F(0), x)


def q8(x: Array, f: Any) -> Array:
    return np.rint(clamp(x * f, 127)).astype(np.int64)


P = (F(0.9999711513519287), F(0.11447270959615707), F(0.0014955527149140835))
Q = (F(0.44771409034729004), F(0.01748739928007126), F(5.518598118214868e-05))


def tanh(x: Array) -> Array:
    x = clamp(x, 6)
    u = x * x
    return x * (P[0] + u * (P[1] + u * P[2])) / (F(1) + u * (Q[0] + u * (Q[1] + u * Q[2])))


def sigmoid(x: Array) -> Array:
    return F(0.5) + F(0.5) * tanh(F(0.5) * x)


def powers() -> Array:
    getcontext().prec = 40
    return np.array([int((Decimal(2) ** (28 - Decimal(i) / 1024)).to_integral_value()) for i in range(1024)])


E = powers()
S = 2**24 - 256


def counts_of(a: Array) -> Array:
    z = np.rint(clamp(a * F(1477.3197021484375), 65536)).astype(np.int64)
    d = z.max(1, keepdims=True) - z
    e = E[d % 1024] >> np.minimum(d // 1024, 31)
    c = e * S // e.sum(1, keepdims=True)
    for row, below in zip(c, d, strict=True):
        row[below.tolist().index(0)] += S - row.sum()
    return c


class RangeDecoder:
    """Words to bytes."""

    def __init__(self, payload: bytes) -> None:
        self.words = np.frombuffer(payload, "<u4").tolist()
        self.low, self.range, self.point = 0, 2**64 - 1, 0
        self.shift()
        self.shift()

    def shift(self) -> None:
        self.point = (self.point << 32 | (self.words.pop(0) if self.words else 0)) % 2**64

    def decode(self, c: Array) -> int:
        r = self.range >> 24
        v = (self.point - self.low) % 2**64 // r
        assert v < 2**24
        bounds = np.cumsum(c + 1)
        i = int(np.searchsorted(bounds, v, side="right"))
        share = int(c[i]) + 1
        self.low = (self.low + r * (int(bounds[i]) - share)) % 2**64
        self.range = r * share
        if self.range < 2**32:
            self.low, self.range = (self.low << 32) % 2**64, self.range << 32
            self.shift()
        return i


# docs/learning.md


def to_int8(x: Array) -> tuple[Array, Array]:
    """Rows to 127ths of their largest, and that 127th."""
    m = np.abs(x).max(1)
    tiny = m < F(2.0**-60)
    m1 = np.where(tiny, F(1), m)
    p = np.rint(clamp(x * (F(127) / m1)[:, None], 127)).astype(np.int64)
    return np.where(tiny[:, None], 0, p), np.where(tiny, F(0), m / F(127))


class Network:
    """A model, and what it has learned."""

    def __init__(self, path: str, settings: dict[int, int]) -> None:
        with safe_open(path, "numpy") as file:
            config = json.loads(file.metadata()["config"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        self.tensors, self.settings = tensors, settings
        self.units, self.depth, self.gates = (
            config["units"],
            config["depth"],
            2 if config.get("coupled", True) else 3,
        )
        self.f = tensors["value.state"][0]
        self.rows = {f"recurrent.{layer}": f"bias.{layer}" for layer in range(self.depth)}
        self.rows |= {"recurrent.0": "input", "output": "output_bias"}
        self.reset()

    def reset(self) -> None:
        t, maps = self.tensors, self.rows
        self.w = {m: t[f"{m}.weight"].astype(np.int64) for m in maps}
        self.scale = {m: t[f"{m}.scale"] for m in maps}
        self.anchor = {m: t[f"{m}.weight"].astype(F) * (self.scale[m] * self.f) for m in maps}
        self.anchor |= {r: t[f"table.{r}"] for r in maps.values()}
        self.theta = {name: anchor.copy() for name, anchor in self.anchor.items()}
        self.v = {name: np.zeros_like(anchor) for name, anchor in self.anchor.items()}
        self.n, self.history = 0, b""

    def affine(self, name: str, q: Array, row: Array) -> Array:
        return (q @ self.w[name]).astype(F) * self.scale[name] + self.theta[self.rows[name]][row]

    def block(self, payload: bytes, length: int, lanes: int, segment: int) -> bytes:
        coder, units = RangeDecoder(payload), self.units
        sizes = [length // lanes + (lane < length % lanes) for lane in range(lanes)]
        out = [bytearray() for _ in range(lanes)]
        replay = int(np.array(self.settings.get(7, 0), np.uint32).view(F)[()])
        every = lanes + replay
        s, q = np.zeros((every, units), F), np.zeros((every, units), np.int64)
        x, first, share = np.zeros(every, np.int64), np.zeros(every, np.int64), np.ones(every, F)
        at, end, known = [0] * replay, [0] * replay, b""
        tape: list[Any] = []
        for step in range(max(sizes)):
            if replay and step % segment == 0:
                known = self.history[-(2**22) :] + bytes(out[0])
                for r in range(replay):
                    if at[r] + segment + 1 > min(end[r], len(known)):
                        at[r] = random_value(f"replay {self.n + 1}", r) % max(1, len(known) - 2048)
                        end[r] = at[r] + max(2048, segment + 1)
                    idle = at[r] + segment + 1 > len(known)
                    share[lanes + r] = 0 if idle else np.array(self.settings[8], np.uint32).view(F)[()]
                    x[lanes + r] = 0 if idle else known[at[r]]
                    at[r] += segment
            layers = []
            for layer in range(self.depth):
                row = first if layer else x.copy()
                a = self.affine(f"recurrent.{layer}", q, row)
                h, t = tanh(a[:, :units]), sigmoid(a[:, units : 2 * units])
                c = sigmoid(a[:, 2 * units :])
                layers.append((h, t, c, s, q, row))
                s = keep((h - s) * t + s) if self.gates == 2 else keep(h * t + s * c)
                q = q8(s, self.f)
            counts = counts_of(self.affine("output", q, first))
            active = sum(step < size for size in sizes)
            for lane in range(active):
                x[lane] = coder.decode(counts[lane])
                out[lane].append(x[lane])
            share[active:lanes] = 0
            for r in range(replay):
                x[lanes + r] = known[at[r] - segment + step % segment + 1] if share[lanes + r] else 0
            tape.append((layers, q, counts, x.copy(), share.copy()))
            if segment and len(tape) == segment:
                self.learn(tape)
                tape = []
        self.history += b"".join(out)
        return b"".join(out)

    def to_input(self, name: str, da: Array, d: Array) -> Array:
        p, rho = to_int8(da * self.scale[name])
        return keep(d + (p @ self.w[name].T).astype(F) * (rho * self.f)[:, None])

    def learn(self, tape: list[Any]) -> None:
        lanes = len(tape[0][3])
        seen: dict[str, list[Any]] = {name: [] for name in self.rows}
        d = np.zeros((lanes, self.units), F)
        for layers, q_last, counts, x, share in reversed(tape):
            da = (counts + 1).astype(F) * F(2.0**-24)
            da[np.arange(lanes), x] -= F(1)
            da = np.where(share[:, None] == 0, F(0), da * share[:, None])
            d = self.to_input("output", da, d)
            seen["output"].append((q_last, da, np.zeros(lanes, np.int64)))
            for layer in reversed(range(self.depth)):
                h, t, c, s, q, row = layers[layer]
                u, w = keep(d * t), keep(d * c) if self.gates == 3 else None
                da_h, gate = keep(u * (F(1) - h * h)), keep(u * (F(1) - t))
                before = np.zeros_like(d)
                if w is None:
                    parts, before = [da_h, keep(gate * (h - s))], keep(before + (d - u))
                else:
                    parts = [da_h, keep(gate * h), keep(keep(w * (F(1) - c)) * s)]
                    before = keep(before + w)
                da = np.concatenate(parts, 1)
                d = self.to_input(f"recurrent.{layer}", da, before)
                seen[f"recurrent.{layer}"].append((q, da, row))
        self.n += 1
        for name, uses in seen.items():
            self.update(name, *(np.concatenate(part) for part in zip(*uses, strict=True)))

    def step(self, name: str, at: Any, g: Array) -> None:
        number = {key: np.array(bits, np.uint32).view(F)[()] for key, bits in self.settings.items()}
        rate, boost, kappa, beta, floor = (number[key] for key in (1, 2, 3, 4, 6))
        n = F(self.n)
        rate = rate * (F(1) + boost * (kappa / (kappa + n)))
        beta = min(beta, F(1) - F(1) / n)
        v, theta = self.v[name][at], self.theta[name][at]
        bounded = clamp(g, 2.0**20)
        square = bounded * bounded
        v = np.where(v == 0, keep(square), keep(beta * v + (F(1) - beta) * square))
        self.v[name][at] = v
        self.theta[name][at] = keep(theta - rate * (g / (np.sqrt(v) + floor)))

    def pull(self, name: str) -> None:
        decay, drift = (np.array(self.settings[key], np.uint32).view(F)[()] for key in (5, 9))
        theta, anchor = self.theta[name], self.anchor[name]
        self.theta[name] = keep(theta + decay * (anchor - theta))
        self.anchor[name] = keep(anchor + drift * (self.theta[name] - anchor))

    def update(self, name: str, q: Array, da: Array, row: Array) -> None:
        p, mu = to_int8(np.ascontiguousarray(da.T))
        table = self.rows[name]
        used = np.unique(row)
        sums = np.array([p[:, row == i].sum(1) for i in used])
        unused = np.setdiff1d(np.arange(len(self.v[table])), used)
        beta = min(np.array(self.settings[4], np.uint32).view(F)[()], F(1) - F(1) / F(self.n))
        self.v[table][unused] = keep(beta * self.v[table][unused])
        self.step(table, used, keep(sums.astype(F) * mu))
        self.step(name, ..., keep((q.T @ p.T).astype(F) * (mu / self.f)))
        if self.n % 16 == 0:
            self.pull(table)
            self.pull(name)
        w, m = to_int8(np.ascontiguousarray(self.theta[name].T))
        self.w[name], self.scale[name] = w.T, m / self.f


def decode(archive: bytes, path: str) -> bytes:
    out = b""
    for part, payload in ArchiveReader(io.BytesIO(archive)):
        if isinstance(part, FrameHeader):
            network = Network(path, part.parameters)
        elif isinstance(part, CodedBlock):
            if part.reset:
                network.reset()
            out += network.block(payload, part.raw_length, part.lanes, part.segment)
        else:
            out += payload
    return out


def write_model(path: Path, coupled: bool) -> Model:
    cell = RHN(RHNConfig(units=9, depth=2, embedding=4, coupled=coupled))
    parameters = cell.initial(torch.Generator().manual_seed(4))
    sample = np.frombuffer(TEXT, np.uint8)
    parameters["output_bias"] = torch.from_numpy(np.log(np.bincount(sample, minlength=256) + 0.01)).float()
    model = Model("toy", cell, exact_weights(cell, parameters, sample))
    save_model(model, path)
    return model


@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("preset", ["fast", "default", "best"])
def test_archives_decode(coupled: bool, preset: str, tmp_path: Path) -> None:
    path = tmp_path / "toy.safetensors"
    write_model(path, coupled)
    raw = TEXT + bytes(range(100, 160)) + TEXT[3:]
    archive = rhnzip.compress(raw, model=str(path), preset=preset, lanes=3, block_size=150)
    assert decode(archive, str(path)) == raw == rhnzip.decompress(archive, model=str(path))


class Watched(CpuBackend):
    """Keeps the learner that it gives away."""

    def learner(self, *arguments: Any) -> Any:
        self.given = super().learner(*arguments)
        return self.given


@pytest.mark.parametrize("replay", [0, 3])
@pytest.mark.parametrize("coupled", [True, False])
def test_networks_stay_the_same_to_the_last_bit(coupled: bool, replay: int, tmp_path: Path) -> None:
    """The bytes would come out right even if a weight were off by a bit, most of the time."""
    path, backend = tmp_path / "toy.safetensors", Watched()
    model = write_model(path, coupled)
    chosen = Settings(rate=0.01, boost=2.0, boost_updates=5.0, beta=0.9, decay=0.1, floor=1e-3, drift=0.2)
    chosen = replace(chosen, replay=replay, replay_share=0.3 if replay else 0.0)
    chosen = from_parameters(to_parameters(chosen))
    codec = LearningCodec(model.cell, model.weights, backend, chosen, 1)
    network = Network(str(path), to_parameters(chosen))
    for raw, lanes, segment in (
        (TEXT[:157], 5, 4),
        (TEXT[:30], 7, 1),
        (TEXT[:200], 6, 17),
        (TEXT[::-1], 4, 6),
    ):
        payload = codec.encode(raw, lanes, segment)
        assert network.block(payload, len(raw), lanes, segment) == raw
        learner = backend.given
        for name, table in network.rows.items():
            for found, expected in (
                (network.theta[name], learner.theta[name].T),
                (network.v[name], learner.moments[name].T),
                (network.w[name].astype(np.int8), learner.maps[name].weight.numpy()),
                (network.scale[name], learner.column_scales[name]),
                (network.theta[table], learner.tables[table]),
                (network.v[table], learner.moments[table]),
                (network.anchor[name], learner.anchors[name].T),
                (network.anchor[table], learner.anchors[table]),
            ):
                assert found.dtype == expected.dtype
                assert found.tobytes() == np.ascontiguousarray(expected).tobytes()
    assert network.n > 16


# Scratch models


def random_value(text: str, i: int) -> int:
    key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    z = (key + (i + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def random_values(text: str, shape: tuple[int, ...]) -> Array:
    return np.array([random_value(text, i) for i in range(int(np.prod(shape)))], object).reshape(shape)


def scratch_tensors(layers: int, units: int, seed: int) -> dict[str, Array]:
    text, width = f"scratch {layers}x{units} {seed}", 4 * units
    scale = F(2.0 ** -(((units - 1).bit_length() + 1) // 2)) / F(127) / F(127)
    tensors = {"value.hidden": np.array([127], F), "table.output_bias": np.zeros((1, 256), F)}
    maps = {f"lstm.{n}.recurrent": (units, width) for n in range(layers)}
    maps |= {f"lstm.{n}.input": (units, width) for n in range(1, layers)}
    for name, shape in (maps | {"output": (layers * units, 256)}).items():
        values = random_values(f"{text} {name}", shape)
        tensors[f"{name}.weight"] = (values % 255 - 127).astype(np.int8)
        tensors[f"{name}.scale"] = np.full(shape[1], scale)
    for n in range(layers):
        values = (random_values(f"{text} lstm.{n}.symbols", (256, width)) >> 40).astype(F) * F(2.0**-24)
        tensors[f"table.lstm.{n}.symbols"] = (values - F(0.5)) * F(0.125 if n else 0.5)
        bias = tensors[f"table.lstm.{n}.bias"] = np.zeros((1, width), F)
        bias[:, 2 * units : 3 * units] = F(1)
    return tensors


@pytest.mark.parametrize(("layers", "units", "seed"), [(2, 9, 0), (1, 16, 77), (3, 17, 0)])
def test_scratch_models_are_those_documented(layers: int, units: int, seed: int, tmp_path: Path) -> None:
    config: dict[str, Any] = {"cell": "lstm", "layers": layers, "norm": False, "skip": True, "units": units}
    if layers == 1:
        del config["layers"]
    digest = hashlib.sha256(json.dumps(config, separators=(",", ":")).encode())
    for name, tensor in sorted(scratch_tensors(layers, units, seed).items()):
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode() + tensor.tobytes())
    model = scratch_model(f"scratch:{layers}x{units}" + (f":{seed}" if seed else ""))
    assert digest.digest()[:8] == model.id


# The test vectors of docs/exactness.md


def table_after(marker: str) -> list[list[str]]:
    text = (DOCS / "exactness.md").read_text("utf-8").split(f"<!-- {marker} -->\n")[1].split("\n\n")[0]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def number(bits: str) -> Array:
    return np.array([int(bits, 16)], np.uint32).view(F)


def bits_of(x: Array) -> str:
    return f"{int(x.view(np.uint32)[0]):08x}"


def test_function_vectors() -> None:
    rows = table_after("functions")
    assert len(rows) == 9
    for x, t, s in rows:
        assert (bits_of(tanh(number(x))), bits_of(sigmoid(number(x)))) == (t, s)


def test_count_vectors() -> None:
    values = dict(table_after("counts"))
    a = np.array([[37 * i % 101 / 8 for i in range(256)]], F)
    (c,) = counts_of(a)
    assert values["c_0, c_1, c_2, c_3"] == ", ".join(map(str, c[:4]))
    assert values["largest count"] == f"{c.max()}, of i = {c.argmax()}"
    digest = hashlib.sha256(c.astype("<u4").tobytes()).hexdigest()
    assert digest.startswith(values["SHA-256 of the counts as little-endian u32"].split("`")[1])


def test_constants_of_the_documents() -> None:
    text = (DOCS / "exactness.md").read_text("utf-8")
    constants = re.findall(r"\b[PQ][012] \| ([0-9.e-]+) \| `([0-9a-f]{8})`", text)
    assert len(constants) == 6
    for value, bits in constants:
        assert bits_of(np.array([value], F)) == bits and F(value) in (*P, *Q)
    entries = {int(i): int(e) for i, e in re.findall(r"E\[(\d+)\] =\s+(\d+)", text)}
    assert set(entries) == {0, 1, 512, 1023} and all(E[i] == e for i, e in entries.items())
    assert hashlib.sha256(E.astype("<u4").tobytes()).hexdigest() in text
