"""A sequence classifier that averages the hidden states of all tokens, for encoders that were trained that way.

Sentence encoders (MiniLM, MPNet, …) are trained with mean pooling; the stock classifiers read the first token, which
carries little of what they know. This file imports only torch and transformers: it is copied into every checkpoint, so
that `AutoModelForSequenceClassification.from_pretrained(directory, trust_remote_code=True)` works without ebmcal.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PretrainedConfig, PreTrainedModel
from transformers import initialization as init  # skips weights that were loaded
from transformers.modeling_outputs import SequenceClassifierOutput


class MeanPoolingConfig(PretrainedConfig):
    """The config of the encoder, and what a classifier adds to it."""

    model_type = "mean_pooling_classifier"
    sub_configs: ClassVar[dict[str, Any]] = {"encoder_config": AutoConfig}

    def __init__(self, encoder_config: Any = None, classifier_dropout: float = 0.1, **kwargs: Any) -> None:
        if isinstance(encoder_config, dict):
            encoder_config = AutoConfig.for_model(**encoder_config)
        self.encoder_config = encoder_config
        self.classifier_dropout = classifier_dropout
        if encoder_config is not None:
            kwargs.setdefault("pad_token_id", encoder_config.pad_token_id)
        super().__init__(**kwargs)

    @property
    def hidden_size(self) -> int:
        return self.encoder_config.hidden_size

    @property
    def num_hidden_layers(self) -> int:
        return self.encoder_config.num_hidden_layers

    @property
    def max_position_embeddings(self) -> int | None:
        return getattr(self.encoder_config, "max_position_embeddings", None)

    @property
    def type_vocab_size(self) -> int:
        return getattr(self.encoder_config, "type_vocab_size", 0)


class MeanPoolingForSequenceClassification(PreTrainedModel):
    """backbone → mean over the tokens → dropout → linear layer."""

    config_class = MeanPoolingConfig
    base_model_prefix = "backbone"
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: MeanPoolingConfig, backbone: nn.Module | None = None) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.backbone = AutoModel.from_config(config.encoder_config) if backbone is None else backbone
        if backbone is not None:  # a new config has reset its attention implementation
            backbone.config._attn_implementation = "sdpa" if backbone._supports_sdpa else "eager"
        if getattr(self.backbone, "pooler", None) is not None:
            self.backbone.pooler = None  # reads the first token; not used
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool = False,
        **_: Any,
    ) -> SequenceClassifierOutput:
        """Logits [n, C] of padded texts."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        inputs = {"input_ids": input_ids, "attention_mask": mask}
        if token_type_ids is not None and self.config.type_vocab_size > 1:
            inputs["token_type_ids"] = token_type_ids
        output = self.backbone(**inputs, output_hidden_states=output_hidden_states)
        weights = mask.unsqueeze(-1).to(output.last_hidden_state.dtype)  # [n, L, 1]
        pooled = (output.last_hidden_state * weights).sum(dim=1) / weights.sum(dim=1)
        logits = self.head(pooled)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=output.hidden_states)

    def head(self, pooled: Tensor) -> Tensor:
        """Mean hidden states [n, H] -> logits [n, C]."""
        return self.classifier(self.dropout(pooled))

    def _init_weights(self, module: nn.Module) -> None:
        if module is self.classifier:
            init.normal_(module.weight, std=getattr(self.config.encoder_config, "initializer_range", 0.02))
            init.zeros_(module.bias)


MeanPoolingConfig.register_for_auto_class()
MeanPoolingForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
AutoConfig.register(MeanPoolingConfig.model_type, MeanPoolingConfig, exist_ok=True)
AutoModelForSequenceClassification.register(MeanPoolingConfig, MeanPoolingForSequenceClassification, exist_ok=True)
