"""Requests and responses: parsing of request bodies with plain error messages, and the types of the OpenAPI document.

Error messages state what was received and what is allowed but never quote the body: they may end up in a log.
"""

import re
from typing import Any

from pydantic import BaseModel, Field
from pydantic_core import from_json

from ebmcal.data.files import INK
from ebmcal.errors import EbmcalError
from ebmcal.serving import Limits
from ebmcal.serving.batcher import Text

KINDS = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "null"}


class Answer(BaseModel):
    """The prediction for one text; a field is null if the model has no abstention rule for it."""

    id: str | None = Field(description="Id of the row in the answer log; null without one.")
    label: str = Field(description="The most probable class.")
    confidence: float = Field(description="Its probability.")
    probabilities: dict[str, float] = Field(description="Probability per class, after calibration.")
    logits: dict[str, float] = Field(description="Logit per class, before calibration.")
    energy: float = Field(description="Low = like the training data.")
    decision: str | None = Field(description="answer or abstain.")
    reason: str | None = Field(description="Why the rule abstains; empty if it answers.")
    score: float | None = Field(description="The score that the decision is based on.")
    is_ood: bool | None = Field(description="Whether the text is out-of-distribution (unlike the training data).")
    ood_score: float | None = Field(description="The score behind is_ood; high = unlike the training data.")
    ood_score_name: str | None = Field(description="Which score that is, for example knn or energy.")
    ood_p_value: float | None = Field(description="p-value: share of calibration texts that are at least as extreme.")
    label_set: list[str] | None = Field(description="Labels that contain the correct one at the fitted coverage.")
    n_tokens: int = Field(description="Tokens that the model processed.")
    is_truncated: bool = Field(description="Whether the text reached the maximum length, so its end may be ignored.")


class Answers(BaseModel):
    """One answer per input, in the same order."""

    model: str
    results: list[Answer]


class ModelInfo(BaseModel):
    """A served model."""

    name: str
    labels: list[str]
    calibrator: str | None
    folded_temperature: float | None = Field(description="Temperature contained in the weights of the last layer.")
    energy: str = Field(description="The energy function: hidden, sharp-hidden, scalar, …")
    is_energy_trained: bool = Field(description="Whether noise contrastive estimation trained the energy.")
    max_length: int = Field(description="Maximum number of tokens; longer texts are truncated.")
    is_pair: bool | None = Field(description="Whether inputs are pairs; null if unknown, then both are accepted.")
    abstention: list[str] = Field(description="The guarantees of the abstention rule.")


class ModelList(BaseModel):
    """The served models; the first one answers requests that name none."""

    models: list[ModelInfo]


class State(BaseModel):
    """ok, or what is wrong."""

    status: str


class Problem(BaseModel):
    """What is wrong with a request and what to do."""

    error: str


def request_schema(limits: Limits) -> dict[str, Any]:
    """The JSON schema of the body of `/v1/classify`."""
    text = {"type": "string", "maxLength": limits.max_characters, "pattern": INK}
    pair = {
        "type": "object", "required": ["text"], "additionalProperties": False, "title": "Pair",
        "properties": {"text": text, "text_pair": {"anyOf": [text, {"type": "null"}]}},
    }  # fmt: skip
    texts = {"type": "array", "items": {"anyOf": [text, pair]}, "minItems": 1, "maxItems": limits.max_texts}
    model = {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "A name of /v1/models."}
    inputs = {"anyOf": [text, pair, texts], "description": "A text, a pair, or a list of texts and pairs."}
    return {
        "type": "object", "required": ["inputs"], "additionalProperties": False, "title": "Request",
        "properties": {"inputs": inputs, "model": model},
    }  # fmt: skip


def parse_request(content: bytes, limits: Limits) -> tuple[list[Text], str | None]:
    """The texts and the model name in the body of `/v1/classify`.

    >>> parse_request(b'{"inputs": ["a", {"text": "b", "text_pair": "c"}]}', Limits())
    (['a', ('b', 'c')], None)
    >>> parse_request(b'{"inputs": 3}', Limits())
    Traceback (most recent call last):
    ebmcal.errors.EbmcalError: "inputs": expected a text or {"text": "…", "text_pair": "…"}, got a number.
    """
    try:
        body = from_json(content)
    except ValueError as error:
        raise EbmcalError("The body is not JSON in UTF-8 (without a byte order mark).") from error
    _check_object(body, "The body", "inputs", "model")
    inputs, model = body["inputs"], body.get("model")
    if not isinstance(model, str | None):
        raise EbmcalError(f'"model": expected a name of /v1/models, got {_kind(model)}.')
    if not isinstance(inputs, list):
        return [_parse_text(inputs, '"inputs"', limits)], model
    if not 1 <= len(inputs) <= limits.max_texts:
        raise EbmcalError(f'"inputs" has {len(inputs)} texts; expected at least 1 and at most {limits.max_texts}.')
    return [_parse_text(value, f"inputs[{i}]", limits) for i, value in enumerate(inputs)], model


def _parse_text(value: Any, where: str, limits: Limits) -> Text:
    if not isinstance(value, dict):
        return _check_text(value, where, limits, ' or {"text": "…", "text_pair": "…"}')
    _check_object(value, where, "text", "text_pair")
    text, pair = _check_text(value["text"], f'{where}: "text"', limits), value.get("text_pair")
    return text if pair is None else (text, _check_text(pair, f'{where}: "text_pair"', limits))


def _check_text(text: Any, where: str, limits: Limits, alternative: str = "") -> str:
    if not isinstance(text, str):
        raise EbmcalError(f"{where}: expected a text{alternative}, got {_kind(text)}.")
    if len(text) > limits.max_characters:
        raise EbmcalError(f"{where} has {len(text)} characters; at most {limits.max_characters} are allowed.")
    if not re.search(INK, text):
        raise EbmcalError(f"{where} is an empty text.")
    return text


def _check_object(value: Any, where: str, required: str, optional: str) -> None:
    if not isinstance(value, dict):
        raise EbmcalError(f'{where}: expected an object with "{required}", got {_kind(value)}.')
    if value.keys() - {required, optional}:
        raise EbmcalError(f'{where} has unknown fields; only "{required}" and "{optional}" are allowed.')
    if required not in value:
        raise EbmcalError(f'{where}: "{required}" is missing.')


def _kind(value: Any) -> str:
    return KINDS.get(type(value), "a number")
