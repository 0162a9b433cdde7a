"""Last-layer Laplace against dense algebra."""

import numpy as np
import torch
from torch import nn

from ebmcal.methods.laplace import PRECISIONS, LastLayerGaussian, best_precision


class Stub(nn.Module):
    """A last layer on given features."""

    def __init__(self, n_features=4, n_classes=3):
        super().__init__()
        self.config = type("Config", (), {"num_labels": n_classes})
        self.classifier = nn.Linear(n_features, n_classes)

    def forward(self, features):
        return self.classifier(features)


def test_variances_of_logits_equal_those_of_the_dense_covariance():
    torch.manual_seed(0)
    model, features = Stub().eval(), torch.randn(50, 4)
    gaussian = LastLayerGaussian(model).eval()
    with torch.no_grad():
        plain = model(features)
        with gaussian.fitting():
            model(features[:20])
            model(features[20:])
        shrunk = model(features)
    phi = np.c_[features.numpy(), np.ones(50)].astype(np.float64)
    probs = plain.double().softmax(dim=-1).numpy()
    a, b = phi.T @ phi / 50, (np.diag(probs.sum(0)) - probs.T @ probs) / 50
    curvature = torch.from_numpy(50 * np.outer(np.linalg.eigvalsh(a), np.linalg.eigvalsh(b).clip(0)))
    norm = sum(p.square().sum().item() for p in model.classifier.parameters())
    tau = best_precision(curvature, norm).item()
    covariance = np.linalg.inv(np.kron(50 * a, b) + tau * np.eye(15))  # of the weights, features first
    for i in (0, 7):
        jacobian = np.kron(phi[i], np.eye(3))  # [C, (H + 1) C]
        expected = np.diag(jacobian @ covariance @ jacobian.T)
        np.testing.assert_allclose(gaussian.logit_variances(features[i : i + 1])[0], expected, rtol=1e-3)
        factor = np.sqrt(1 + np.pi / 8 * expected)
        np.testing.assert_allclose(shrunk[i].numpy(), plain[i].numpy() / factor, rtol=1e-3)


def test_the_prior_precision_is_the_best_of_all_and_falls_with_larger_weights():
    curvature = torch.rand(6, 3, dtype=torch.float64) * 100
    small, large = (best_precision(curvature, norm).item() for norm in (0.1, 10.0))
    assert large < small
    assert PRECISIONS[0] < large


def test_training_is_the_baselines_and_dropout_passes_include_the_variance():
    model = Stub()
    gaussian = LastLayerGaussian(model)
    gaussian.variances.fill_(1.0)
    gaussian.basis.copy_(torch.eye(5))
    gaussian.classes.copy_(torch.eye(3))
    features = torch.randn(2, 4)
    expected = nn.functional.linear(features, model.classifier.weight, model.classifier.bias)
    torch.testing.assert_close(model(features), expected)
    with torch.no_grad():
        assert (model(features).abs() < expected.abs()).all()
