"""A tokenizer for models from scratch: each character is a token, and one of them ends a turn."""


class Characters:
    """The tokens are the places in `alphabet`."""

    def __init__(self, alphabet: str, end: str) -> None:
        self._characters = alphabet
        self._tokens = {character: token for token, character in enumerate(alphabet)}
        self.vocabulary = len(alphabet)
        self.end_tokens = (self._tokens[end],)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokens[character] for character in text)

    def decode(self, tokens: tuple[int, ...]) -> str:
        return "".join(self._characters[token] for token in tokens)

    def told(self, told: str, last: int) -> tuple[int, ...]:
        return self.encode(told)
