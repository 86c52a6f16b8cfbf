"""The text of a request while its tokens come one by one: characters of several tokens, and stop strings."""

from __future__ import annotations

from typing import Any

from minibatcher.request import Request

HALF = "\ufffd"  # what a decoder writes for bytes that are no character (yet)


class TextStream:
    """`push` each new token; `text` is the text so far, of which the first `safe` characters will not change.

    When the request has ended, `close()`: then `text` is final, and equals tokenizer.decode of the output tokens up
    to the stop. (Only ByteFallback, of SentencePiece tokenizers, can take back what was sent: a byte that fits nowhere
    turns the characters before it, as far as they came in bytes, into U+FFFD.)
    """

    def __init__(self, tokenizer: Any, request: Request) -> None:
        self.tokenizer = tokenizer
        self.request = request
        self.stop = request.params.stop
        self.hold_back = max(map(len, self.stop), default=1) - 1  # a stop string could begin in the last characters
        self.text = ""
        self.searched = 0  # no stop string ends in the first `searched` characters
        self.stopped = self.closed = False
        # Decoding all tokens anew for each would be slow, one token alone wrong: a character may span tokens, and a
        # decoder may treat the first token otherwise (it drops its space). So a short window is decoded twice:
        #
        #     ids   ... | window: settled tokens | new tokens ...
        #                 start                    end
        #
        # and the new text is what the second decoding has more. `end` moves on when the text ends in a whole character.
        self.ids: list[int] = []
        self.start = self.end = 0
        self.settled = ""  # the text up to `end`

    @property
    def safe(self) -> int:
        return len(self.text) if self.closed else max(0, len(self.text) - self.hold_back)

    def push(self, token: int) -> bool:
        """Take the next token; True when it completes a stop string. This is the request's `on_token`."""
        params, count = self.request.params, self.request.num_tokens - self.request.num_prompt_tokens
        if token in self.request.stop_ids and count > params.min_tokens:
            return True  # the request ends here, and the text of the token that ended it is no part of the answer
        self.ids.append(token)
        new = self._unsettled()
        self.text = self.settled + new.rstrip(HALF)
        if new and not new.endswith(HALF):  # without new text the window stays: it must not begin with the next token
            self.settled, self.start, self.end = self.text, self.end, len(self.ids)
        if self.stop and count > params.min_tokens:
            return self._search()
        self.searched = len(self.text)
        return False

    def close(self) -> None:
        """No more tokens come: bytes that are half a character at the very end stay U+FFFD."""
        if not self.closed and not self.stopped:
            self.text = self.settled + self._unsettled()
        self.closed = True

    def _unsettled(self) -> str:
        return self._decode(self.ids[self.start :])[len(self._decode(self.ids[self.start : self.end])) :]

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _search(self) -> bool:
        found = [self.text.find(stop, max(0, self.searched - len(stop) + 1)) for stop in self.stop]
        if found := [position for position in found if position >= 0]:
            self.text = self.text[: min(found)]
            self.stopped = True
        self.searched = len(self.text)
        return self.stopped
