"""The functions that score, or reply to, responses to some of the questions in `questions.jsonl`."""

Messages = list[dict[str, str]]


def listed(response: str, items: int) -> float:
    """The reward: half for the right number of items between commas, half for saying little more than the items."""
    found = [each for each in response.strip().rstrip(".").split(",") if each.strip()]
    return 0.5 * (len(found) == items) + 0.5 * (len(response.strip()) <= 12 * items)


def hint(messages: Messages) -> str | None:
    """The reply to a wrong try: there are two more."""
    letters, tries = _letters(messages[-1]["content"]), sum(each["role"] == "assistant" for each in messages)
    return None if letters == 5 or tries == 3 else f"That has {letters} letters. Another one, of five."


def of_five(response: str, messages: Messages) -> float:
    """The reward of a right word, less with each try."""
    tries = sum(each["role"] == "assistant" for each in messages)
    return (_letters(response) == 5) / tries


def _letters(word: str) -> int:
    return len(word.strip().rstrip("."))
