"""A network trained on inputs with a gap, and data that arrives in the gap.

The data is absorbed by conditioning, which is compared with what the long way gives: a network
trained from scratch on all data.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfr_cl import SFRPosterior

from ..harness.networks import mlp
from ..harness.timing import timed
from .panels import Curves, Panel, Points

SEED = 0
NOISE = 0.15
LOW, GAP_LOW, GAP_HIGH, HIGH = -3.0, -1.0, 1.2, 3.0
MARGIN = 0.6
NUM_EACH_SIDE, NUM_NEW, NUM_TEST = 60, 30, 1000
NUM_INDUCING = 32
WIDTH, STEPS, LEARNING_RATE, WEIGHT_DECAY = 64, 1000, 1e-2, 1e-3

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Problem:
    """Noisy samples of one function."""

    first: Pair
    """D1: both sides of the gap."""
    new: Pair
    """D2: in the gap."""
    test: Pair
    """The complete range, gap included."""

    @property
    def everything(self) -> Pair:
        """D1 and D2."""
        return joined(self.first, self.new)


@dataclass(frozen=True)
class Seconds:
    """Where the time went, from the arrival of the data on."""

    train: float
    absorb: float
    """Conditioning, and choosing inducing inputs where that is done."""
    first_prediction: float
    """For one input. It pays for factoring, and learning noise and prior precision, which wait."""

    @property
    def total(self) -> float:
        """All that is needed before predictions are cheap."""
        return self.train + self.absorb + self.first_prediction


@dataclass(frozen=True)
class Row:
    """A line of the table, and of `results.json`."""

    method: str
    network_trained_on: str
    num_data: float
    nlpd: float
    rmse: float
    seconds: float
    seconds_train: float
    seconds_absorb: float
    seconds_first_prediction: float
    prior_precision: float
    noise_sd: float
    seed: int


def experiment(seed: int) -> tuple[list[Row], list[Panel]]:
    """The rows of the table and the panels of the picture."""
    problem = make_problem(seed)
    rows, panels = [], []

    network, train_seconds = timed(lambda: train(problem.first, seed))
    posterior, fit_seconds = timed(lambda: fit(network, problem.first))
    seconds = Seconds(train_seconds, fit_seconds, first_prediction(posterior, problem))
    rows.append(measure("D1 only", "D1", posterior, problem, seconds, seed))
    title = "Trained on $D_1$,\nwhich has a gap"
    panels.append(panel(title, rows[-1], posterior, problem, new=False))

    # Nothing is trained, and no inducing input is chosen, again.
    _, update_seconds = timed(lambda: posterior.update(problem.new))
    seconds = Seconds(0.0, update_seconds, first_prediction(posterior, problem))
    rows.append(measure("updated", "D1", posterior, problem, seconds, seed))
    title = f"Updated by conditioning on $D_2$\nin {1000 * seconds.total:.0f} ms"
    panels.append(panel(title, rows[-1], posterior, problem, new=True))

    other, train_seconds = timed(lambda: train(problem.everything, seed))
    retrained, fit_seconds = timed(lambda: fit(other, problem.everything))
    seconds = Seconds(train_seconds, fit_seconds, first_prediction(retrained, problem))
    rows.append(measure("retrained", "D1 + D2", retrained, problem, seconds, seed))
    title = f"Retrained from scratch on $D_1 \\cup D_2$\nin {seconds.total:.1f} s"
    panels.append(panel(title, rows[-1], retrained, problem, new=True))

    # A check rather than a competitor: the update is exact if this gives the same numbers.
    at_once = SFRPosterior(network, "regression", inducing=posterior.inducing_inputs)
    _, fit_seconds = timed(lambda: at_once.fit(problem.everything))
    seconds = Seconds(0.0, fit_seconds, first_prediction(at_once, problem))
    rows.append(measure("fitted on all", "D1", at_once, problem, seconds, seed))
    return rows, panels


def truth(x: Tensor) -> Tensor:
    return torch.sin(2 * x) + 0.3 * x


def make_problem(seed: int) -> Problem:
    """The function on both sides of the gap, in it, and everywhere."""
    generator = torch.Generator().manual_seed(seed)

    def sample(count: int, low: float, high: float) -> Pair:
        x = low + (high - low) * torch.rand(count, 1, generator=generator)
        return x, truth(x) + NOISE * torch.randn(count, 1, generator=generator)

    left = sample(NUM_EACH_SIDE, LOW, GAP_LOW)
    right = sample(NUM_EACH_SIDE, GAP_HIGH, HIGH)
    new = sample(NUM_NEW, GAP_LOW, GAP_HIGH)
    return Problem(joined(left, right), new, sample(NUM_TEST, LOW, HIGH))


def joined(a: Pair, b: Pair) -> Pair:
    return torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])


def train(data: Pair, seed: int) -> nn.Module:
    """A network with two hidden layers, trained on squared error with weight decay."""
    torch.manual_seed(seed)
    network = mlp(1, WIDTH, WIDTH, 1, activation=nn.Tanh)
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    x, y = data
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (network(x) - y).square().mean() / 2
        loss.backward()
        optimizer.step()
        schedule.step()
    return network


def fit(network: nn.Module, data: Pair) -> SFRPosterior:
    """The posterior of a trained network."""
    return SFRPosterior(network, "regression", inducing=NUM_INDUCING).fit(data)


def first_prediction(posterior: SFRPosterior, problem: Problem) -> float:
    """Seconds until the first answer."""
    return timed(lambda: posterior.predict(problem.test[0][:1]))[1]


def measure(
    method: str,
    trained_on: str,
    posterior: SFRPosterior,
    problem: Problem,
    seconds: Seconds,
    seed: int,
) -> Row:
    """The posterior on the test points."""
    x, y = problem.test
    noise_variance = posterior.noise_variance
    assert isinstance(noise_variance, float)  # regression of one output
    return Row(
        method=method,
        network_trained_on=trained_on,
        num_data=posterior.num_data,
        nlpd=posterior.nlpd(problem.test),
        rmse=float((posterior.predict(x).mean - y).square().mean().sqrt()),
        seconds=seconds.total,
        seconds_train=seconds.train,
        seconds_absorb=seconds.absorb,
        seconds_first_prediction=seconds.first_prediction,
        prior_precision=posterior.prior_precision,
        noise_sd=noise_variance**0.5,
        seed=seed,
    )


def panel(title: str, row: Row, posterior: SFRPosterior, problem: Problem, *, new: bool) -> Panel:
    """The posterior as it is now, a little beyond the data on both sides."""
    x = torch.linspace(LOW - MARGIN, HIGH + MARGIN, 400)[:, None]
    latent, observed = posterior.predict_f(x), posterior.predict(x)
    inducing = posterior.inducing_inputs
    assert isinstance(inducing, Tensor)
    return Panel(
        title=title,
        note=f"test NLPD ${row.nlpd:.2f}$",  # as mathematics, for a true minus sign
        curves=Curves(
            x=flat(x),
            truth=flat(truth(x)),
            mean=flat(latent.mean),
            sd_f=flat(latent.stddev),
            sd_y=flat(observed.stddev),
        ),
        first=Points(flat(problem.first[0]), flat(problem.first[1])),
        new=Points(flat(problem.new[0]), flat(problem.new[1])) if new else None,
        inducing=flat(inducing),
    )


def flat(values: Tensor) -> list[float]:
    column: list[float] = values.reshape(-1).tolist()
    return column
