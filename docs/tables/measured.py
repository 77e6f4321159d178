"""Kernels, engines and the HTTP path, from benchmarks/results/*.csv."""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.results_csv import read
from docs.tables.marks import markdown, under

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks/results"
MODELS = {
    "llama-8b": "8B",
    "mistral-24b": "24B",
    "llama-70b": "70B",
    "qwen3-30b-a3b": "Qwen3-30B-A3B",
    "timed_15ms": "steps of 15 ms",
}
Row = dict[str, str]


def _rows(name: str) -> list[Row]:
    _, columns, rows = read(RESULTS / f"{name}.csv")
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _with_conditions(name: str, table: str) -> str:
    comments, _, _ = read(RESULTS / f"{name}.csv")
    found = [match[0].strip() for line in comments if (match := re.search(r"python -m [\w.]+(?:(?!: )[^;|])*", line))]
    commands = list(dict.fromkeys(found))
    if len(commands) > 1:  # rows of several runs
        commands = list(dict.fromkeys(f"{' '.join(each.split()[:3])} ..." for each in commands))
    machine = next((line.split("; torch")[0] for line in comments if re.match(r"NVIDIA|CPU|no GPU", line)), "")
    machine = re.sub(r", clocks.*|, \d+ MHz", "", machine)
    machine = " | ".join(dict.fromkeys(machine.split(" | ")))  # of several GPUs alike one
    said = "; ".join(part for part in (*(f"`{each}`" for each in commands), machine) if part)
    return under(f"{said}{'; ' if said else ''}`{name}.csv`.", table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def _by_system(name: str, keys: Sequence[str], value: str) -> dict[tuple[str, ...], dict[str, float]]:
    """Return a column's numbers by the fields of other columns, and then by system."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for row in _rows(name):
        found.setdefault(tuple(row[key] for key in keys), {})[row["system"]] = float(row[value])
    return found


def _ratios(
    times: dict[tuple[str, ...], dict[str, float]], low: int, high: int, system: str, *over: str
) -> list[float]:
    """Return a system's times over the shortest of others, of the problems with so many tokens where it ran."""
    return [
        us[system] / min(us[other] for other in over)
        for (*_, tokens), us in times.items()
        if low <= int(tokens) <= high and system in us
    ]


def _mean(ratios: Sequence[float]) -> str:
    return f"{np.exp(np.log(ratios).mean()):.2f}"


def gemm(name: str) -> str:
    """Return times of the GEMM over a library's, by range of token counts."""
    times = _by_system(name, ("N", "K", "M"), "us")
    ranges = {"all": (1, 8192), "1 to 128": (1, 128), "129 to 768": (129, 768), "769 to 8,192": (769, 8192)}
    compared = {
        "FP16 mode / cuBLAS FP16": ("nestedfp_fp16", "cublas_fp16"),
        "FP8 mode / the better `torch._scaled_mm`": ("nestedfp_fp8", "scaled_mm_fp8_row", "scaled_mm_fp8_tensor"),
        "FP8 mode / vLLM's CUTLASS FP8": ("nestedfp_fp8", "vllm_fp8"),
        "FP8 mode / cuBLAS FP16": ("nestedfp_fp8", "cublas_fp16"),
    }
    rows = []
    for what, systems in compared.items():
        ratios = [_ratios(times, *tokens, *systems) for tokens in ranges.values()]
        rows.append([what, *(f"{_mean(each)} ({np.percentile(each, 95):.2f}, {max(each):.2f})" for each in ratios)])
    return _with_conditions(name, markdown([f"{len(times)} problems; tokens", *ranges], rows))


def mixed_rows(name: str, *shown: str) -> str:
    """Return times of GEMMs whose rows are of both precisions, of the sizes shown, ``EXACT,FAST``."""
    ms = _by_system(name, ("model", "exact_rows", "fast_rows"), "ms")
    systems = {"fused": "one launch", "two": "two", "all_fp16": "all FP16", "all_fp8": "all FP8"}
    headings = ["exact, fast rows of 24B", *systems.values()]
    rows = []
    for exact, fast in (each.split(",") for each in shown):
        rows.append([f"{exact}, {fast}", *(f"{ms['mistral-24b', exact, fast][system]:.1f}" for system in systems)])
    return _with_conditions(name, markdown(headings, rows))


def engine(name: str, *shown: str) -> str:
    """Return tokens per second of each line, ``MODEL INPUT OUTPUT OPTION: BATCH BATCH``, and the ratio to vLLM where it ran."""
    found = _by_system(name, ("model", "input_tokens", "output_tokens", "option", "batch"), "tokens_per_s")
    wanted = []
    for line in shown:
        what, _, batches = line.rpartition(":")
        model, tokens_in, tokens_out, *option = what.split(maxsplit=3)
        label = ", ".join([MODELS[model], *(option or [f"{tokens_in} in, {tokens_out} out"])])
        wanted += [(label, n, found[model, tokens_in, tokens_out, "".join(option), n]) for n in batches.split()]
    headings, rows = ["tokens/s", "batch"], [[label, batch] for label, batch, _ in wanted]
    for precision in ("fp16", "fp8"):
        plain, ours = f"vllm_{precision}", f"nestedfp_{precision}"
        ran = any(plain in speeds for *_, speeds in wanted)
        headings += [f"vLLM {precision.upper()}"] * ran + [f"{precision.upper()} mode"]
        for cells, (*_, speeds) in zip(rows, wanted, strict=True):
            peer = speeds.get(plain)
            cells += [_number(peer) if peer else ""] * ran
            cells.append(_number(speeds[ours]) + (f" ({speeds[ours] / peer:.2f})" if peer else ""))
    return _with_conditions(name, markdown(headings, rows))


def http(name: str, rates: str, replicas: str = "1") -> str:
    """Return the HTTP path: closed loop, alone, and open loads of these rates; of these numbers of replicas."""
    found: dict[tuple[str, str, int, str], dict[tuple[str, str], Row]] = {}
    for row in _rows(name):
        key = (row["model"], row["mode"], int(row["replicas"]), row["system"])
        found.setdefault(key, {})[row["scenario"], row["rate_per_s"]] = row
    loads = [("unloaded", "0"), *(("open", rate) for rate in rates.split(","))]
    rows = []
    for (model, mode, count, system), by_load in sorted(found.items(), key=lambda item: (item[0][2], item[0])):
        if str(count) in replicas.split(","):
            closed = by_load["closed", "0"]
            where = f"{MODELS[model]}, {mode.upper()}" + (f", {count} replicas" if count > 1 else "")
            label = {"nestedfp": "this service", "vllm_serve": "`vllm serve`"}[system]
            speed = [_number(float(closed["tokens_per_s"])), f"{float(closed['path_cpu_us_per_token']):.0f}"]
            rows.append([where, label, *speed, *(_http_latency(by_load.get(load)) for load in loads)])
    headings = ["", "", "tokens/s, 256 streams a replica", "frontend CPU, us a token"]
    latency = "TTFT p50/p99, TPOT p50"
    headings += [f"{latency} unloaded, ms", *(f"at {rate} requests/s" for rate in rates.split(","))]
    return _with_conditions(name, markdown(headings, rows))


def _http_latency(row: Row | None) -> str:
    if row is None:
        return ""
    ttft = "/".join(f"{float(row[f'ttft_{each}_ms']):.0f}" for each in ("p50", "p99"))
    return f"{ttft}, {float(row['tpot_p50_ms']):.1f}"


def portable(name: str) -> str:
    """Return times over cuBLAS in FP16, geometric means by range of token counts."""
    times = _by_system(name, ("N", "K", "M"), "us")
    ranges = [(low, high - 1) for low, high in pairwise((1, 17, 33, 65, 129, 257, 1025, 8193))]
    systems = {
        "portable_fp16": "FP16 mode, portable",
        "library_fp16": "FP16 mode, weights joined for cuBLAS",
        "portable_upper_fp16": "FP8 mode, portable, FP16 activations",
        "portable_fp8": "FP8 mode, portable, E4M3 activations",
        "library_fp8": "FP8 mode, vLLM's CUTLASS",
        "hopper_fp16": "the Hopper kernels, FP16 mode",
        "hopper_fp8": "the Hopper kernels, FP8 mode",
    }
    rows = []
    for system, label in systems.items():
        ratios = [_ratios(times, *tokens, system, "cublas_fp16") for tokens in ranges]
        if all(ratios):  # a card has not all of them
            rows.append([label, *map(_mean, ratios)])
    return _with_conditions(name, markdown(["tokens", *(f"{low:,} to {high:,}" for low, high in ranges)], rows))


def expert_layers(name: str, *models: str) -> str:
    """Return times of a layer of experts of these models, microseconds, and in brackets those of vLLM's kernels over them."""
    times: dict[tuple[int, str], dict[str, float]] = {}
    for row in _rows(name):
        times.setdefault((int(row["tokens"]), row["model"]), {})[row["system"]] = float(row["us"])

    def cell(size: int, model: str, ours: str, *peers: str) -> str:
        us = times[size, model]
        return f"{us[ours]:,.0f} ({', '.join(f'{us[peer] / us[ours]:.2f}' for peer in peers)})"

    systems = {"FP16": ("exact", "fp16"), "FP8": ("fast", "fp8", "cutlass")}
    sizes = sorted({size for size, model in times if model in models})
    rows = [[f"{size:,}", *(cell(size, model, *of) for model in models for of in systems.values())] for size in sizes]
    return _with_conditions(
        name, markdown(["tokens", *(f"{model}, {mode}" for model in models for mode in systems)], rows)
    )


TABLES = {table.__name__: table for table in (gemm, mixed_rows, engine, http, portable, expert_layers)}
