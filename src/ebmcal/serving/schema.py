"""Requests and responses: the types of the OpenAPI document, and parsing of request bodies.

Error messages state what was received and what is allowed but never quote the body: they may end up in a log.
"""

import functools
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, create_model

from ebmcal.data.files import INK
from ebmcal.errors import EbmcalError
from ebmcal.serving import Limits
from ebmcal.serving.batcher import Text


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
    """The served model."""

    name: str
    labels: list[str]
    calibrator: str | None
    folded_temperature: float | None = Field(description="Temperature contained in the weights of the last layer.")
    energy: str = Field(description="The energy function: hidden, sharp-hidden, scalar, …")
    is_energy_trained: bool = Field(description="Whether noise contrastive estimation trained the energy.")
    max_length: int = Field(description="Maximum number of tokens; longer texts are truncated.")
    is_pair: bool | None = Field(description="Whether inputs are pairs; null if unknown, then both are accepted.")
    abstention: list[str] = Field(description="The guarantees of the abstention rule.")


class State(BaseModel):
    """ok, or what is wrong."""

    status: str


class Problem(BaseModel):
    """What is wrong with a request and what to do."""

    error: str


@functools.lru_cache(8)
def request_model(limits: Limits) -> type[BaseModel]:
    """The body of `/v1/classify`, with the limits of a server."""
    text = Annotated[str, Field(max_length=limits.max_characters, pattern=INK)]  # at least one visible character
    strict = ConfigDict(extra="forbid")
    pair: Any = create_model("Pair", __config__=strict, text=(text, ...), text_pair=(text | None, None))
    one = Annotated[text, Tag("text")] | Annotated[pair, Tag("pair")]
    many = Annotated[
        list[Annotated[one, Discriminator(_kind_of_item)]], Field(min_length=1, max_length=limits.max_texts)
    ]
    inputs = Annotated[one | Annotated[many, Tag("list")], Discriminator(_kind)]
    return create_model("Request", __config__=strict, inputs=(inputs, ...))


def _kind_of_item(value: Any) -> str:
    return "pair" if isinstance(value, dict) else "text"


def _kind(value: Any) -> str:
    return "list" if isinstance(value, list) else _kind_of_item(value)


def parse_request(content: bytes, limits: Limits) -> list[Text]:
    """The texts in the body of `/v1/classify`.

    >>> parse_request(b'{"inputs": ["a", {"text": "b", "text_pair": "c"}]}', Limits())
    ['a', ('b', 'c')]
    >>> parse_request(b'{"inputs": 3}', Limits())
    Traceback (most recent call last):
    ebmcal.errors.EbmcalError: inputs.text: Input should be a valid string.
    """
    try:
        inputs = request_model(limits).model_validate_json(content).inputs  # type: ignore[attr-defined]
    except ValidationError as error:
        raise EbmcalError(_problem(error.errors(include_input=False)[0])) from None
    values = inputs if isinstance(inputs, list) else [inputs]
    return [v if isinstance(v, str) else v.text if v.text_pair is None else (v.text, v.text_pair) for v in values]


def _problem(found: Any) -> str:
    place, message = [str(part) for part in found["loc"]], found["msg"]
    if found["type"] == "extra_forbidden":
        place, message = place[:-1], "Unknown field"  # its name is a part of the body
    if found["type"] == "string_pattern_mismatch":
        message = "The text is empty"
    return f"{'.'.join(place) or 'The body'}: {message}."
