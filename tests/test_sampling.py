"""The sampler against transformers' logits processors, and what it draws against the distribution it should have."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
import torch
from transformers.generation import logits_process as hf

from minibatcher import Request, SamplingParams
from minibatcher.model import sampling
from minibatcher.model.sampling import process, sample, uniform

INF, NAN = torch.inf, torch.nan


def request(prompt=(0,), output=(), stop_ids=(), **params) -> Request:
    """As a scheduler hands it over: `output` is there already, `stop_ids` are the model's and the request's."""
    made = Request(list(prompt), SamplingParams(max_tokens=100, **params))
    made.token_ids += output
    made.stop_ids = frozenset(stop_ids)
    return made


def reference(logits: torch.Tensor, made: Request) -> torch.Tensor:
    """transformers' processors in the order of `GenerationMixin._get_logits_processor`."""
    params, processors = made.params, []
    if params.repetition_penalty != 1:
        processors.append(hf.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.min_tokens and made.stop_ids:
        stops = sorted(made.stop_ids)
        processors.append(hf.MinNewTokensLengthLogitsProcessor(made.num_prompt_tokens, params.min_tokens, stops))
    if params.temperature > 0:
        processors.append(hf.TemperatureLogitsWarper(float(params.temperature)))
        if params.top_k > 0:
            processors.append(hf.TopKLogitsWarper(params.top_k))
        if params.top_p < 1:
            processors.append(hf.TopPLogitsWarper(params.top_p))
        if params.min_p > 0:
            processors.append(hf.MinPLogitsWarper(params.min_p))
    return hf.LogitsProcessorList(processors)(torch.tensor([made.token_ids]), logits[None].clone())[0]


def check(logits: torch.Tensor, made: Request) -> None:
    """The same tokens survive, with the same probabilities."""
    before, ours, theirs = logits.clone(), process(logits, made), reference(logits, made)
    assert torch.equal(logits, before), "the logits belong to the caller"
    assert torch.equal(ours.isfinite(), theirs.isfinite()), f"other tokens survive with {made.params}"
    torch.testing.assert_close(ours.log_softmax(-1), theirs.log_softmax(-1), rtol=1e-5, atol=1e-5)


def rows(vocab: int, spread: float = 3.0, number: int = 4):
    generator = torch.Generator().manual_seed(vocab)
    return spread * torch.randn(number, vocab, generator=generator)


ONE_SETTING = [
    *({"temperature": t} for t in (0.01, 0.5, 1.0, 2.0, 100.0)),
    *({"top_k": k} for k in (-1, 0, 1, 2, 5, 16, 17, 1000)),
    *({"top_p": p} for p in (0.0, 1e-6, 0.1, 0.5, 0.9, 0.999999, 1.0)),
    *({"min_p": p} for p in (0.0, 1e-6, 0.05, 0.5, 1.0)),
    *({"repetition_penalty": p} for p in (0.5, 0.99, 1.0, 1.3, 5.0)),
    *({"min_tokens": n} for n in (0, 3, 4, 9)),
]


@pytest.mark.parametrize("setting", ONE_SETTING, ids=str)
@pytest.mark.parametrize("vocab", [1, 2, 3, 17, 1000])
def test_each_setting_agrees_with_transformers(setting, vocab):
    """top_k beyond the vocabulary keeps all. top_p keeps the token that crosses the threshold, and at least one.

    top-p dropped that token in GeeeekExplorer/nano-vllm#260.
    """
    for logits in rows(vocab):
        stop_ids = [] if vocab == 1 else [0, vocab - 1]
        check(logits, request([0, vocab - 1, 0], output=[vocab // 2] * 3, stop_ids=stop_ids[: vocab - 1], **setting))


def test_combined_settings_agree_with_transformers():
    """Every combination: the order in which they are applied shows in which tokens survive."""
    grid = itertools.product((0.3, 1.7), (0, 3, 12), (0.4, 0.95, 1.0), (0.0, 0.1), (1.0, 1.4), (0, 5))
    for number, (temperature, top_k, top_p, min_p, penalty, min_tokens) in enumerate(grid):
        logits = 2 * torch.randn(29, generator=torch.Generator().manual_seed(number))
        made = request(
            [1, 2, 3], [3, 4], [5, 6], temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
            repetition_penalty=penalty, min_tokens=min_tokens,
        )  # fmt: skip
        check(logits, made)


@pytest.mark.parametrize("setting", [s for s in ONE_SETTING if s.keys() & {"top_k", "top_p", "min_p"}], ids=str)
@pytest.mark.parametrize(
    "logits", [[0.0] * 8, [1.0, 1.0, 0.0, 0.0], [2.0, 1.0, 1.0, 1.0, 1.0, 0.0], [-INF, 3.0, 3.0, -INF, 3.0]], ids=str
)
def test_ties_agree_with_transformers(logits, setting):
    """Tokens tied with the k-th all stay with top-k; with top-p no more than needed."""
    check(torch.tensor(logits), request(**setting))


def test_top_p_0_keeps_one_token_and_top_k_keeps_all_that_are_tied():
    tied = torch.zeros(8)
    assert process(tied, request(top_p=0.0)).isfinite().sum() == 1
    assert process(tied, request(top_k=3)).isfinite().sum() == 8


@pytest.mark.parametrize("output", range(5))
def test_min_tokens_forbids_every_end_token_and_stop_id_until_reached(output):
    """Also when greedy, where a sampler is tempted to skip all settings.

    With several end tokens only one was forbidden in vllm-project/vllm#15967.
    """
    logits = torch.tensor([[5.0, 1.0, 4.0, 3.0, 2.0]])
    for temperature in (0, 1e-3):
        made = request(output=[1] * output, stop_ids=[0, 2, 3], min_tokens=3, temperature=temperature)
        assert sample(logits, [made]) == ([4] if output < 3 else [0])


def test_greedy_takes_the_maximum_and_the_penalty_counts():
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    settings = dict(temperature=0, top_k=1, top_p=0.1, min_p=1.0, seed=1)  # none of these can change a maximum
    assert sample(logits, [request([0], **settings)]) == [0]
    assert sample(logits, [request([0], repetition_penalty=2.0, **settings)]) == [1]
    assert sample(logits, [request([1], [0], repetition_penalty=4.0, **settings)]) == [2]


@pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1e-45, 1e-60, 5e-324])
def test_a_tiny_temperature_is_almost_greedy(temperature):
    for logits in rows(50, spread=30.0):
        assert sample(logits[None], [request(temperature=temperature)]) == [int(logits.argmax())]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_drawn_from_in_full(dtype):
    logits = rows(100).to(dtype)
    settings = dict(temperature=0.7, top_p=0.9, seed=5)
    assert sample(logits, [request(**settings)] * 4) == sample(logits.float(), [request(**settings)] * 4)


# -- the distribution -------------------------------------------------------------------------------------------------

# The 99.9% quantiles of the chi-square distribution, by degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.4). With
# fixed seeds the tests below always give the same figure; a correct sampler exceeds these with one seed in 1,000.
CHI_SQUARE = {2: 13.816, 3: 16.266, 4: 18.467, 7: 24.322, 8: 26.124}
DRAWS = 2000
LOGITS = torch.tensor([1.0, 0.2, -0.5, 2.0, -1.0, 0.0, 0.7, 1.5])


def chi_square(counts: Counter, probabilities: dict) -> float:
    assert counts.keys() <= {outcome for outcome, p in probabilities.items() if p > 0}, "drawn, and impossible"
    draws = counts.total()
    return sum((counts[outcome] - draws * p) ** 2 / (draws * p) for outcome, p in probabilities.items() if p > 0)


def drawn(logits: torch.Tensor, requests: list[Request]) -> list[int]:
    return sample(logits.expand(len(requests), -1), requests)


@pytest.mark.parametrize(
    ("settings", "survivors"),
    [({}, 8), (dict(temperature=0.6), 8), (dict(top_k=5), 5), (dict(top_p=0.75), 4), (dict(min_p=0.3), 3),
     (dict(temperature=1.5, top_k=6, top_p=0.9), 5)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("varied", ["seed", "index", "nothing"])
def test_draws_follow_the_distribution(settings, survivors, varied):
    """Over seeds at one index, over the indices of one seed (a request's own tokens), and without a seed."""
    random.seed(0)
    seeds = {"seed": range(DRAWS), "index": [17] * DRAWS, "nothing": [None] * DRAWS}[varied]
    requests = [request(seed=seed, **settings) for seed in seeds]
    if varied == "index":
        for index, made in enumerate(requests):
            made.token_ids += [0] * index
    expected = reference(LOGITS, request(**settings)).softmax(-1).tolist()
    assert sum(p > 0 for p in expected) == survivors
    figure = chi_square(Counter(drawn(LOGITS, requests)), dict(enumerate(expected)))
    assert figure < CHI_SQUARE[survivors - 1]


@pytest.mark.parametrize("varied", ["seed", "index"])
def test_successive_draws_are_independent(varied):
    """All nine pairs come equally often. A generator made anew for each token repeats itself, as in
    vllm-project/vllm-metal#50.
    """
    requests = [request(output=[0] * (n if varied == "index" else 0), seed=9 if varied == "index" else n)
                for n in range(DRAWS)]  # fmt: skip
    tokens = drawn(torch.zeros(3), requests)
    pairs = Counter(zip(tokens[::2], tokens[1::2], strict=True))
    assert chi_square(pairs, {pair: 1 / 9 for pair in itertools.product(range(3), repeat=2)}) < CHI_SQUARE[8]


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2**-53])
def test_a_forbidden_token_is_never_drawn(u, monkeypatch):
    """Not even by the smallest and the largest number that a generator can give."""
    monkeypatch.setattr(sampling, "uniform", lambda *args, **kwargs: u)
    for allowed in ([3], [2, 5], [1, 2, 3, 4, 5, 6], [0], [7]):
        for spread in (0.0, 30.0):
            logits = torch.full((8,), -INF)
            logits[allowed] = spread * torch.randn(len(allowed))
            assert drawn(logits, [request(seed=1)])[0] in allowed


# -- seeds ------------------------------------------------------------------------------------------------------------


def test_a_seeded_draw_is_the_same_in_any_batch():
    """At any place, and beside neighbours with seeds, without, or greedy. In vllm-project/vllm#51226 a seed was
    ignored when a neighbour had none.
    """
    logits = rows(64, number=6)
    made = request([3, 9], [4], seed=11, temperature=0.9, top_p=0.95)
    (alone,) = sample(logits[:1], [made])
    neighbours = [request(), request(seed=11), request(temperature=0), request(seed=12, top_k=3), request(min_p=0.2)]
    for place in range(6):
        others = neighbours[:place], neighbours[place:]
        batch = torch.cat([logits[1 : place + 1], logits[:1], logits[place + 1 :]])
        for _ in range(3):
            assert sample(batch, [*others[0], made, *others[1]])[place] == alone


def test_a_seeded_draw_depends_on_the_index_alone_and_not_on_what_was_drawn_before():
    first, again = request([1, 2, 3], [4, 5], seed=7), request([9], [8, 8], seed=7)
    for _ in range(20):
        sample(LOGITS[None], [first])
    assert sample(LOGITS[None], [first]) == sample(LOGITS[None], [again])


def test_seed_child_and_index_each_make_another_number():
    """No two of 3,000 are equal; and a seed's digits are not taken for those of a child or an index."""
    numbers = [
        uniform(SamplingParams(seed=seed), index, child)
        for seed in [-1, 0, 1, 2, 10, 11, 12, 111, 2**40, 2**70]
        for index in range(60)
        for child in [0, 1, 2, 11, 12]
    ]
    assert len(set(numbers)) == 3000
    assert all(0 <= number < 1 for number in numbers)
    assert uniform(SamplingParams(seed=1), 2, 3) == uniform(SamplingParams(seed=1), index=2, child=3)


def test_without_a_seed_draws_differ():
    assert len(set(drawn(torch.zeros(10**6), [request() for _ in range(5)]))) > 1


def test_drawing_leaves_the_callers_generators_alone():
    """A seeded draw takes nothing from the global generators and puts nothing into them."""
    torch.manual_seed(1)
    random.seed(1)
    before = torch.get_rng_state(), random.getstate()
    drawn(LOGITS, [request(seed=3), request(temperature=0)])
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()


# -- rows that are not finite -----------------------------------------------------------------------------------------

SETTINGS = [
    dict(temperature=0), dict(temperature=0, min_tokens=2), dict(temperature=0, repetition_penalty=1.5), dict(seed=1),
    dict(top_k=1), dict(top_p=0.5), dict(min_p=0.5),
]  # fmt: skip


def spoilt(place: int, value: float) -> torch.Tensor:
    logits = rows(9, number=1)[0]
    logits[place] = value
    return logits


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_row_that_is_not_finite_gives_none_and_spares_its_neighbours(settings):
    """NaN or +inf at any place, and -inf everywhere. Rows must not be mixed, as by a reduction without its axis in
    skyzh/tiny-llm#80.
    """
    faults = [spoilt(place, value) for place in range(9) for value in (NAN, INF)] + [torch.full((9,), -INF)]
    sound = rows(9, number=len(faults) + 1)
    batch = torch.stack([row for pair in zip(sound, faults, strict=False) for row in pair] + [sound[-1]])
    made = [request(seed=n, **{k: v for k, v in settings.items() if k != "seed"}) for n in range(len(batch))]
    tokens = sample(batch, made)
    assert tokens[1::2] == [None] * len(faults)
    alone = [sample(row[None], [made[2 * n]])[0] for n, row in enumerate(sound)]
    assert tokens[::2] == alone and None not in alone


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_minus_infinity_on_some_tokens_is_no_fault(settings):
    for allowed in range(9):
        logits = torch.full((9,), -INF)
        logits[allowed] = -1.0
        assert sample(logits[None], [request(**settings)]) == [allowed]


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_settings_that_forbid_every_token_give_none(temperature):
    logits = torch.tensor([[-INF, 1.0, 2.0]])
    assert sample(logits, [request(stop_ids=[1, 2], min_tokens=1, temperature=temperature)]) == [None]
