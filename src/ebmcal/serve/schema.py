"""What requests and answers look like: pydantic types, from which the OpenAPI document is made too."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from ebmcal.data.values import INK
from ebmcal.serve.limits import Limits

STRICT = ConfigDict(extra="forbid", strict=True)


class Answer(BaseModel):
    """What the model says of a text; what the model folder has no rule for is null."""

    id: str | None = Field(description="Of its row in the server's log of answers; null where there is none.")
    label: str = Field(description="The most probable class.")
    confidence: float = Field(description="Its probability.")
    probabilities: dict[str, float] = Field(description="Of each class, by the calibrator kept with the model.")
    logits: dict[str, float] = Field(description="Of each class, as the model gives them.")
    energy: float = Field(description="Low = like the texts the model was trained on.")
    unusual: bool | None = Field(description="Whether so high an energy, or distance, is rare among calibration texts.")
    unusual_p: float | None = Field(description="How rare: the conformal p-value.")
    decision: str | None = Field(description="answer or abstain.")
    reason: str | None = Field(description="Why the rule abstains; empty where it answers.")
    label_set: list[str] | None = Field(description="Labels that hold the right one at the promised coverage.")
    n_tokens: int = Field(description="Tokens that were read.")
    is_cut: bool = Field(description="Whether the text was longer than the model reads.")


class Answers(BaseModel):
    """An answer for each input, in their order."""

    model: str
    results: list[Answer]


class ModelFacts(BaseModel):
    """A model that is served."""

    name: str
    labels: list[str]
    calibrator: str | None
    folded_temperature: float | None = Field(description="That the weights of the last layer were divided by.")
    energy: str = Field(description="Which energy: hidden, sharp-hidden or scalar.")
    is_energy_trained: bool = Field(description="False for a classifier that ebmcal did not train.")
    max_length: int = Field(description="Tokens of a text that are read; what is longer is cut.")
    is_pair: bool | None = Field(description="Whether it takes pairs; null where that is unknown, and both are taken.")
    rule: list[str] = Field(description="What the decision rule promises.")


class ModelList(BaseModel):
    """The models of this server; the first answers where a request names none."""

    models: list[ModelFacts]


class State(BaseModel):
    """How the server is: ok, or what is wrong."""

    status: str


class Trouble(BaseModel):
    """What was wrong with a request, what is allowed, what to do."""

    error: str


def question_type(limits: Limits) -> type[Any]:
    """The type of the body of `/v1/classify`: a text, a pair or a list of them, within the limits."""
    text = Annotated[str, Field(max_length=limits.max_characters, pattern=INK)]
    pair = create_model(
        "Pair", __config__=STRICT, __doc__="A text, with the second text of a pair.",
        text=(text, ...), text_pair=(text | None, None),
    )  # fmt: skip
    listed = Annotated[list[text | pair], Field(min_length=1, max_length=limits.max_texts)]  # type: ignore[valid-type]
    inputs: Any = (text | pair | listed, Field(description="A text, a pair, or a list of texts and pairs."))
    return create_model(
        "Question", __config__=STRICT, __doc__="What to classify.", inputs=inputs,
        model=(str | None, Field(default=None, description="Which of /v1/models; the first if it is left out.")),
    )  # fmt: skip


def rows_of(question: Any) -> list[tuple[str, str | None]]:
    """The inputs of a checked question as (text, second text or None)."""
    given = question.inputs if isinstance(question.inputs, list) else [question.inputs]
    return [(one, None) if isinstance(one, str) else (one.text, one.text_pair) for one in given]
