"""What some of the questions in `questions.jsonl` are scored by."""


def listed(response: str, items: int) -> float:
    """Half for so many items between commas, half for saying nothing more than one line of them."""
    found = [each for each in response.strip().rstrip(".").split(",") if each.strip()]
    return 0.5 * (len(found) == items) + 0.5 * (len(response.strip()) <= 12 * items)
