"""Ten classes an experience, up to a hundred: read as a linear discriminant from the third on."""

from __future__ import annotations

import torch
from avalanche.benchmarks import nc_benchmark

from sfr_cl import SFRPosterior
from sfr_cl.strategies import SFRConditioning
from sfr_cl.testing.streams import Labelled, blobs, silent, single_head

CLASSES = 100


def test_classes_grow_from_ten_to_a_hundred() -> None:
    train, (x, _) = blobs(1, 6, CLASSES), blobs(2, 2, CLASSES)
    benchmark = nc_benchmark(
        Labelled(*train),
        Labelled(*blobs(2, 2, CLASSES)),
        10,
        task_labels=False,
        fixed_class_order=list(range(CLASSES)),
    )
    found = []
    for order in (1, -1):
        torch.manual_seed(5)
        strategy = SFRConditioning(
            model=single_head(),
            num_inducing=40,
            inducing="noise",
            logit_scale=1.0,
            evaluator=silent(),
        )
        for seen, experience in enumerate(list(benchmark.train_stream)[::order], start=1):
            strategy.train(experience)
            assert (strategy.posterior.solved.discriminant is not None) == (seen > 2)
        found.append(strategy.posterior)
    whole = SFRPosterior(
        single_head(),
        "classification",
        inducing=found[0].inducing_inputs,
        num_outputs=CLASSES,
        logit_scale=1.0,
    ).fit(train)
    expected = whole.predict(x).logits.log_softmax(1)
    assert not torch.equal(expected.argmax(1), whole.predict_f(x).mean.argmax(1))
    for posterior in found:
        logits = posterior.predict(x).logits.log_softmax(1)
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
