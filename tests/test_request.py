"""What SamplingParams and Request accept, and what they refuse: with the value, the limit and the remedy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from minibatcher import Request, SamplingParams

INF, NAN = math.inf, math.nan


def test_the_defaults_are_the_documented_ones():
    documented = dict(
        max_tokens=16, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, seed=None, stop=(),
        stop_token_ids=(), ignore_eos=False, min_tokens=0, logprobs=None, n=1,
    )  # fmt: skip
    params = SamplingParams()
    assert {name: getattr(params, name) for name in SamplingParams.__dataclass_fields__} == documented
    request = Request([5])
    assert request.params == params
    assert (request.request_id, request.priority, request.arrival, request.output_len) == ("", 0, None, None)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("max_tokens", 0, "at least 1"),
        ("max_tokens", -3, "at least 1"),
        ("min_tokens", -1, "from 0 to max_tokens"),
        ("min_tokens", 17, r"from 0 to max_tokens \(16\)"),
        ("temperature", -0.1, r"0 \(greedy\) or more"),
        ("temperature", INF, r"0 \(greedy\) or more"),
        ("temperature", NAN, r"0 \(greedy\) or more"),
        ("top_p", -0.01, "from 0 to 1"),
        ("top_p", 1.01, "from 0 to 1"),
        ("top_p", NAN, "from 0 to 1"),
        ("top_k", -2, "1 or more, or 0 or -1 for all"),
        ("min_p", -0.01, "from 0 to 1"),
        ("min_p", 1.5, "from 0 to 1"),
        ("min_p", NAN, "from 0 to 1"),
        ("repetition_penalty", 0, "above 0"),
        ("repetition_penalty", -1.0, "above 0"),
        ("repetition_penalty", INF, "above 0"),
        ("repetition_penalty", NAN, "above 0"),
        ("stop", "", "at least 1 character"),
        ("stop", ["end", ""], "at least 1 character"),
        ("stop", [7], "at least 1 character"),
        ("stop_token_ids", [3, -1], "ids of 0 or more"),
        ("n", 2, "use n=1"),
        ("n", 0, "use n=1"),
        ("logprobs", 0, "leave it at None"),
        ("logprobs", 5, "leave it at None"),
    ],
)
def test_a_value_out_of_its_range_is_refused_with_the_range(field, value, allowed):
    with pytest.raises(ValueError, match=allowed) as refusal:
        SamplingParams(**{field: value})
    assert field in str(refusal.value)
    assert all(str(part) in str(refusal.value) for part in (value if isinstance(value, list) else [value]))


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("max_tokens", 2.0, "whole numbers"),
        ("max_tokens", "8", "whole numbers"),
        ("max_tokens", None, "whole numbers"),
        ("top_k", 1.5, "whole numbers"),
        ("min_tokens", "0", "whole numbers"),
        ("seed", 0.5, "whole numbers"),
        ("seed", "x", "whole numbers"),
        ("n", 1.0, "whole numbers"),
        ("stop_token_ids", ["</s>"], "whole numbers"),
        ("stop_token_ids", [1.0], "whole numbers"),
        ("stop_token_ids", 7, "a list"),
        ("stop", 7, "a list"),
        ("stop", None, "a list"),
        ("temperature", "0.7", "a number"),
        ("temperature", None, "a number"),
        ("top_p", "1", "a number"),
        ("min_p", [], "a number"),
        ("repetition_penalty", None, "a number"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(field, value, allowed):
    with pytest.raises(TypeError, match=f"^{field} takes .*{allowed}.*") as refusal:
        SamplingParams(**{field: value})
    inner = value[0] if isinstance(value, list) and value else value
    assert repr(inner) in str(refusal.value) and type(inner).__name__ in str(refusal.value)


def test_the_edges_of_the_ranges_are_accepted():
    low = SamplingParams(max_tokens=1, temperature=0, top_p=0, top_k=-1, min_p=0, repetition_penalty=1e-9, min_tokens=0)
    high = SamplingParams(max_tokens=10**9, temperature=1e9, top_p=1, top_k=10**9, min_p=1, repetition_penalty=1e9)
    assert (low.top_k, high.top_k) == (-1, 10**9)
    assert SamplingParams(max_tokens=7, min_tokens=7).min_tokens == 7
    assert SamplingParams(stop_token_ids=[0]).stop_token_ids == (0,)
    assert [SamplingParams(seed=seed).seed for seed in (0, -1, 2**70)] == [0, -1, 2**70]


def test_stop_is_one_text_or_several():
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["end", "."]).stop == ("end", ".")
    assert SamplingParams(stop=("x" for _ in range(2))).stop == ("x", "x")


@pytest.mark.parametrize("whole", [np.int64, np.int32, np.uint8, torch.tensor])
def test_the_integers_of_numpy_and_torch_become_pythons(whole):
    params = SamplingParams(max_tokens=whole(9), top_k=whole(4), min_tokens=whole(2), seed=whole(3), n=whole(1))
    params = [params.max_tokens, params.top_k, params.min_tokens, params.seed, params.n]
    prompt = Request([whole(5), whole(6)]).prompt_token_ids
    stops = SamplingParams(stop_token_ids=[whole(7)]).stop_token_ids
    assert (params, prompt, stops) == ([9, 4, 2, 3, 1], [5, 6], (7,))
    assert {type(value) for value in [*params, *prompt, *stops]} == {int}


@pytest.mark.parametrize("prompt", [np.arange(3), torch.arange(3), range(3), (0, 1, 2), iter([0, 1, 2])])
def test_a_prompt_is_any_sequence_of_whole_numbers(prompt):
    request = Request(prompt)
    assert request.prompt_token_ids == request.token_ids == [0, 1, 2]


def test_a_request_does_not_share_the_callers_list():
    mine = [1, 2]
    request = Request(mine)
    request.token_ids.append(9)
    mine.append(3)
    assert request.prompt_token_ids == [1, 2] and request.output_token_ids == [9]


def test_params_cannot_be_changed_afterwards():
    with pytest.raises(AttributeError):
        SamplingParams().max_tokens = 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(prompt_token_ids=[]), ValueError, r"empty \(0 tokens\).*at least 1 token"),
        (dict(prompt_token_ids=np.array([], dtype=int)), ValueError, "empty.*at least 1"),
        (dict(prompt_token_ids="hello"), TypeError, "token ids.*text.*tokenize it first.*LLM.generate"),
        (dict(prompt_token_ids=[1, 2.5]), TypeError, "prompt_token_ids takes whole numbers; 2.5 is float"),
        (dict(prompt_token_ids=[[1, 2]]), TypeError, r"whole numbers; \[1, 2\] is list"),
        (dict(prompt_token_ids=[1, None]), TypeError, "whole numbers; None is NoneType"),
        (dict(prompt_token_ids=torch.zeros(1, 2, dtype=torch.long)), TypeError, "whole numbers"),
        (dict(prompt_token_ids=5), TypeError, "prompt_token_ids takes a list.*; 5 is int"),
        (dict(prompt_token_ids=None), TypeError, "prompt_token_ids takes a list.*; None is NoneType"),
        (dict(params={"max_tokens": 3}), TypeError, "params must be SamplingParams, not dict"),
        (dict(params=None), TypeError, "params must be SamplingParams, not NoneType"),
        (dict(output_len=0), ValueError, "output_len=0.*at least 1"),
        (dict(output_len=2.5), TypeError, "output_len takes whole numbers; 2.5 is float"),
        (dict(output_len="9"), TypeError, "output_len takes whole numbers; '9' is str"),
        (dict(deadline_s=0), ValueError, "deadline_s=0.*seconds above 0"),
        (dict(deadline_s=NAN), ValueError, "deadline_s=nan.*seconds above 0"),
        (dict(deadline_s="5"), TypeError, "deadline_s takes a number; '5' is str"),
        (dict(arrival=INF), ValueError, "arrival=inf.*a time in seconds, or None"),
        (dict(arrival=NAN), ValueError, "arrival=nan.*a time in seconds, or None"),
        (dict(arrival="now"), TypeError, "arrival takes a number.*; 'now' is str"),
    ],
)
def test_a_bad_request_is_refused_with_what_to_do(arguments, error, message):
    with pytest.raises(error, match=message):
        Request(**{"prompt_token_ids": [5], **arguments})


def test_the_gap_is_what_has_no_keys_and_values_yet():
    request = Request([5, 6, 7])
    assert (request.num_tokens, request.num_prompt_tokens, request.gap, request.output_token_ids) == (3, 3, 3, [])
    request.num_computed = 3
    request.token_ids.append(8)
    assert (request.num_tokens, request.num_prompt_tokens, request.gap, request.output_token_ids) == (4, 3, 1, [8])


def test_two_requests_with_the_same_prompt_are_two():
    assert Request([5]) != Request([5]) and len({Request([5]), Request([5])}) == 2
