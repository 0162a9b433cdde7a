"""What is wrong with the body of a request, in plain words: what came and what is allowed, never what the body says.

An answer may end up in somebody's log, so no text and no unknown field name is quoted.
"""

import codecs
import json
from typing import Any

from ebmcal.data.values import has_surrogates, is_blank
from ebmcal.serve.limits import Limits

KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
PAIR = '{"text": "…", "text_pair": "…"}'
UNKNOWN = "The body is not what is expected. GET /openapi.json says what is."


class _Wrong(Exception):
    """Carries the sentence."""


def question_trouble(content: bytes, limits: Limits) -> str:
    """What is wrong with a body of `/v1/classify`.

    >>> question_trouble(b'{"inputs": 3}', Limits())
    '"inputs" is a number; a text, {"text": "…", "text_pair": "…"}, or a list of them is expected.'
    """
    try:
        body = _object(content, {"inputs", "model"}, '{"inputs": "a text"}')
        inputs = _there(body, "inputs")
        if not isinstance(body.get("model"), str | None):
            raise _Wrong(f'"model" is {_kind(body["model"])}; a name of /v1/models is expected.')
        _check_inputs(inputs, limits)
    except _Wrong as wrong:
        return str(wrong)
    return UNKNOWN


def pair_trouble(content: bytes, limits: Limits) -> str:
    """What is wrong with a body that is one text, with the second text of a pair."""
    try:
        _check_pair(_object(content, {"text", "text_pair"}, PAIR), "", limits)
    except _Wrong as wrong:
        return str(wrong)
    return UNKNOWN


def _object(content: bytes, known: set[str], example: str) -> dict[str, Any]:
    if content.startswith(codecs.BOM_UTF8):
        raise _Wrong("The body begins with a byte order mark. Send UTF-8 without one.")
    try:
        body = json.loads(content)
    except UnicodeDecodeError as error:
        raise _Wrong("The body is not UTF-8.") from error
    except (ValueError, RecursionError) as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise _Wrong(f"The body is not JSON{where}; {example} is expected.") from error
    if not isinstance(body, dict):
        raise _Wrong(f"The body is {_kind(body)}; an object is expected: {example}.")
    _refuse_unknown(body, known, "The body")
    return body


def _check_inputs(inputs: Any, limits: Limits) -> None:
    if not isinstance(inputs, list):
        return _check_input(inputs, '"inputs"', limits, ", or a list of them")
    if not inputs:
        raise _Wrong('"inputs" is an empty list; one text at least is expected.')
    if len(inputs) > limits.max_texts:
        raise _Wrong(f'"inputs" has {len(inputs)} texts; {limits.max_texts} are allowed. Send them in parts.')
    for i, one in enumerate(inputs):
        _check_input(one, f"inputs[{i}]", limits)


def _check_input(one: Any, where: str, limits: Limits, more: str = "") -> None:
    if isinstance(one, str):
        _check_text(one, where, limits)
    elif isinstance(one, dict):
        _refuse_unknown(one, {"text", "text_pair"}, where)
        _check_pair(one, f"{where}: ", limits)
    else:
        raise _Wrong(f"{where} is {_kind(one)}; a text, {PAIR}{more} is expected.")


def _check_pair(pair: dict[str, Any], before: str, limits: Limits) -> None:
    _there(pair, "text", before)
    for name, value in pair.items():
        if name == "text_pair" and value is None:
            continue
        if not isinstance(value, str):
            raise _Wrong(f'{before}"{name}" is {_kind(value)}; a text is expected.')
        _check_text(value, f'{before}"{name}"', limits)


def _check_text(text: str, where: str, limits: Limits) -> None:
    if len(text) > limits.max_characters:
        raise _Wrong(f"{where} has {len(text)} characters; {limits.max_characters} are allowed.")
    if has_surrogates(text):
        raise _Wrong(f"{where} has half a character (a lone surrogate), which is no text.")
    if is_blank(text):
        raise _Wrong(f"{where} is empty; a text is expected.")


def _there(body: dict[str, Any], name: str, before: str = "") -> Any:
    if name not in body:
        raise _Wrong(f'{before}"{name}" is missing.')
    return body[name]


def _refuse_unknown(body: dict[str, Any], known: set[str], where: str) -> None:
    n_unknown = len(body.keys() - known)
    if n_unknown:
        fields = "a field that is" if n_unknown == 1 else f"{n_unknown} fields that are"
        allowed = " and ".join(f'"{name}"' for name in sorted(known))
        raise _Wrong(f"{where} has {fields} not known; allowed are {allowed}.")


def _kind(value: Any) -> str:
    return KINDS.get(type(value), "a number")
