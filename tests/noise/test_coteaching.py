import pytest
import torch
from pydantic import ValidationError

from raydr.noise.coteaching import KeepSchedule, select_small_loss


@pytest.mark.parametrize("noise_rate", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("ramp_epochs", [1, 5])
def test_schedule_is_the_papers_formula(noise_rate, ramp_epochs):
    schedule = KeepSchedule(noise_rate=noise_rate, ramp_epochs=ramp_epochs)
    for epoch in range(12):
        expected = 1 - min(epoch / ramp_epochs * noise_rate, noise_rate)
        assert schedule.keep_share(epoch) == pytest.approx(expected)


def test_schedule_refuses_to_forget_everything():
    with pytest.raises(ValidationError):
        KeepSchedule(noise_rate=1.0)


@pytest.mark.parametrize(("share", "num_kept"), [(1.0, 10), (0.6, 6), (0.55, 5), (0.01, 1)])
def test_keeps_the_smallest_losses(share, num_kept):
    loss_Q = torch.rand(10, generator=torch.Generator().manual_seed(0), requires_grad=False)
    kept = select_small_loss(loss_Q, share)
    assert kept.tolist() == sorted(sorted(range(10), key=lambda query: loss_Q[query].item())[:num_kept])


def test_ties_go_to_the_earlier_query():
    assert select_small_loss(torch.ones(6), 0.5).tolist() == [0, 1, 2]


def test_floating_point_does_not_cost_a_query():
    assert len(select_small_loss(torch.arange(100.0), 1.0 - 0.43)) == 57
