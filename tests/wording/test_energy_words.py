"""What is said of energy, for each kind of device."""

from dataclasses import replace

from harness.report.energy_words import energy_words
from harness.schema.energy import DeviceEnergy
from tests.labs.factories import make_run


def test_energy_is_told_for_each_kind_of_device() -> None:
    gpu = DeviceEnergy(
        host="node1",
        device="GPU-1",
        seconds=10.0,
        samples=11,
        counter_j=3000.0,
        integral_j=2940.0,
        limit_w=700.0,
        clock_mhz=1500.0,
        held_down={"power cap": 0.25},
        utilisation={"sm": 0.81, "nvlink": 12000.0},
    )
    processor = DeviceEnergy(host="node1", device="package-0", seconds=10.0, samples=11, counter_j=1000.0)
    run = replace(make_run(), energy=(gpu, replace(gpu, device="GPU-2"), processor))
    words = energy_words(run)
    assert "2\N{NO-BREAK SPACE}GPUs used 6,000 J" in words
    assert "600 W" in words
    assert "-2.0 %" in words
    assert "power cap 25 %" in words
    assert "sm 81 %" in words
    assert "1\N{NO-BREAK SPACE}processor used 1,000 J" in words
    assert energy_words(make_run()) == ""
