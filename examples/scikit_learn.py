"""scikit-learn: the classifier in a pipeline, a grid search over its settings, and in scikit-learn's own calibrator."""

import csv

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from ebmcal import EnergyTextClassifier
from ebmcal.data.builtin import reviews_file

with open(reviews_file(), encoding="utf-8", newline="") as file:
    rows = [row for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"][::20]
X, y = np.array([row["text"] for row in rows]), np.array([row["label"] for row in rows])
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)

tidy = FunctionTransformer(lambda texts: np.array([" ".join(text.split()) for text in texts]))
pipeline = make_pipeline(tidy, EnergyTextClassifier("minilm", method="baseline", epochs=1, max_length=64))
grid = {"energytextclassifier__learning_rate": [3e-4, 1e-4]}
search = GridSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss").fit(X_train, y_train)
print(search.best_params_)

calibrated = CalibratedClassifierCV(FrozenEstimator(search.best_estimator_)).fit(X_test[::2], y_test[::2])
for name, model in {"the model": search, "calibrated by scikit-learn": calibrated}.items():
    print(f"{name}: log-loss {log_loss(y_test[1::2], model.predict_proba(X_test[1::2])):.3f}")
