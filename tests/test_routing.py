"""Pinned requests go to replicas in FP16 where there are any; the autoscaler does what the controller wants."""

import asyncio
import warnings
from types import SimpleNamespace

import pytest

from deploy.scaling import replicas_wanted

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, at import
    from deploy.routing import PrecisionAwareRouter, is_pinned, ranked


def call(body_pin=None, header=None):
    body = SimpleNamespace(vllm_xargs=None if body_pin is None else {"precision": body_pin})
    headers = {} if header is None else {"X-NestedFP-Precision": header}
    return [body, SimpleNamespace(headers=headers)]


@pytest.mark.parametrize(
    ("args", "pinned"),
    [
        (call(), False),
        (call(body_pin="fp16"), True),
        (call(header="fp16"), True),
        (call(body_pin="auto", header="fp16"), False),  # the body wins
        (call(header="auto"), False),
        ([SimpleNamespace(vllm_xargs=None), None], False),
        ([SimpleNamespace()], False),  # tokenize has no vllm_xargs
        ([], False),
        (["r0"], False),
    ],
)
def test_a_pin_is_seen_in_body_and_header(args, pinned):
    assert is_pinned(args) is pinned


def test_fp16_comes_before_auto_and_auto_before_the_rest():
    modes = {"a": "fp8", "b": "fp16", "c": None, "d": "auto", "e": "fp16"}
    assert ranked(list(modes), modes.get) == [["b", "e"], ["d"], ["a", "c"]]
    assert ranked(["a"], modes.get) == [["a"]]
    assert ranked([], modes.get) == []


def test_the_router_gives_a_pinned_request_two_of_the_exact_replicas_first():
    replicas = [SimpleNamespace(name=i, routing_stats={"precision": "fp16" if i < 3 else "fp8"}) for i in range(6)]
    replicas.append(SimpleNamespace(name=6, routing_stats={}))
    router = PrecisionAwareRouter.__new__(PrecisionAwareRouter)
    request = SimpleNamespace(args=call(body_pin="fp16"))
    for _ in range(20):
        first, second = asyncio.run(router.choose_replicas(replicas, request))
        assert len(first) == len(second) == 2
        assert {replica.name for replica in first} < {0, 1, 2}
        assert {replica.name for replica in second} < {3, 4, 5, 6}


def test_serve_can_carry_the_router_to_the_ingress():
    from ray.serve.config import RequestRouterConfig

    config = RequestRouterConfig(request_router_class=PrecisionAwareRouter)
    assert config.get_request_router_class().__name__ == "PrecisionAwareRouter"


def context(said, target=3, least=2, most=8):
    series = {name: [SimpleNamespace(value=float(v)) for v in values] for name, values in said.items()}
    return SimpleNamespace(
        raw_metrics={"desired_replicas": series} if said else {},
        target_num_replicas=target,
        capacity_adjusted_min_replicas=least,
        capacity_adjusted_max_replicas=most,
    )


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({}, 3),
        ({"a": []}, 3),
        ({"a": [0]}, 2),
        ({"a": [0, 5]}, 5),
        ({"a": [5, 0], "b": [5]}, 5),
        ({"a": [5, 0], "b": [5, 0]}, 2),
        ({"a": [99]}, 8),
    ],
)
def test_the_autoscaler_takes_the_latest_and_largest_number_within_its_bounds(said, wanted):
    assert replicas_wanted(context(said)) == (wanted, {})
