"""scikit-learn: the estimator in a grid search, calibrated by cross-fitting."""

import tempfile
from pathlib import Path

from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from tiny_model import make_encoder, make_rows

from ebmcal import EnergyTextClassifier

texts, labels = make_rows(200)
X_train, X_test, y_train, y_test = train_test_split(texts, labels, test_size=0.5, stratify=labels, random_state=0)

with tempfile.TemporaryDirectory() as folder:
    encoder = str(make_encoder(Path(folder) / "encoder"))
    classifier = EnergyTextClassifier(encoder, epochs=10, max_length=32, settings={"precision": "fp32"})
    search = GridSearchCV(classifier, {"learning_rate": [3e-3, 1e-3]}, cv=2, scoring="neg_log_loss")
    search.fit(X_train, y_train)
    print(search.best_params_, f"log-loss {log_loss(y_test, search.predict_proba(X_test)):.3f}")

    calibrated = classifier.set_params(calibration="cross-fit", **search.best_params_).fit(X_train, y_train)
    print(calibrated.model_, f"log-loss {log_loss(y_test, calibrated.predict_proba(X_test)):.3f}")
