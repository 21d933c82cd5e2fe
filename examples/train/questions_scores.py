"""What some of the questions in `questions.jsonl` are scored by, or answered."""

Messages = list[dict[str, str]]


def listed(response: str, items: int) -> float:
    """Half for so many items between commas, half for saying nothing more than one line of them."""
    found = [each for each in response.strip().rstrip(".").split(",") if each.strip()]
    return 0.5 * (len(found) == items) + 0.5 * (len(response.strip()) <= 12 * items)


def hint(messages: Messages) -> str | None:
    """Two more tries."""
    letters, tries = _letters(messages[-1]["content"]), sum(each["role"] == "assistant" for each in messages)
    return None if letters == 5 or tries == 3 else f"That has {letters} letters. Another one, of five."


def of_five(response: str, messages: Messages) -> float:
    """Less for each try."""
    tries = sum(each["role"] == "assistant" for each in messages)
    return (_letters(response) == 5) / tries


def _letters(word: str) -> int:
    return len(word.strip().rstrip("."))
