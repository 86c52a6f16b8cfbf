"""Stage 1: a padded rectangle with a dense cache, and the model's own attention. As `transformers.generate` works."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from minibatcher.model.plain import cache_argument
from minibatcher.model.runner import Stopwatch
from minibatcher.model.sampling import sample
from minibatcher.plan import Plan
from minibatcher.request import Request

#           prompt step                     then one column a step
#
#   row 0   pad pad  a   b   c              d   e   EOS  -   -      "-": its request has ended, its row has not
#   row 1    f   g   h   i   j              k   l   m    n   o
#
# Positions count from a row's first token, so the padding in front must not be counted, and must not be seen.


class PaddedRunner:
    def __init__(self, model: PreTrainedModel, pad_token_id: int = 0) -> None:
        self.model = model
        self.pad_token_id = pad_token_id
        self._cache_argument = cache_argument(model)
        self._cache: Any = None
        self._mask = torch.empty(0)  # [rows, tokens in the cache]: 0 where a row is padded
        self.stopwatch = Stopwatch(model.device)
        self.busy_s: float | None = None  # seconds that a GPU worked in the last step; None on a CPU

    @torch.inference_mode()
    def execute(self, plan: Plan) -> dict[Request, int | None]:
        rows = plan.rectangle or []
        if plan.admitted:  # a new batch
            self._cache = DynamicCache(config=self.model.config)
            self._mask = torch.empty(len(rows), 0, dtype=torch.int64)
        width = max(plan.work.values())
        ids = torch.full((len(rows), width), self.pad_token_id)
        mask = torch.ones(len(rows), width, dtype=torch.int64)
        positions = torch.zeros(len(rows), width, dtype=torch.int64)
        for row, request in enumerate(rows):
            start, n = request.num_computed, plan.work.get(request, 0)
            if n:
                ids[row, width - n :] = torch.tensor(request.token_ids[start : start + n])
                mask[row, : width - n] = 0
                positions[row, width - n :] = torch.arange(start, start + n)
            # A finished row is computed all the same, on a pad token. Its position stays at 0: counted on, it could
            # leave the range of a model with learned positions.
        self._mask = torch.cat([self._mask, mask], dim=1)
        device = self.model.device
        self.stopwatch.start()
        logits = self.model(
            input_ids=ids.to(device),
            attention_mask=self._mask.to(device),
            position_ids=positions.to(device),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: self._cache},
        ).logits[:, -1]
        live = [row for row, request in enumerate(rows) if request in plan.work]
        requests = [rows[row] for row in live]
        tokens = sample(logits[live], requests)
        self.busy_s = self.stopwatch.stop()
        return dict(zip(requests, tokens, strict=True))
