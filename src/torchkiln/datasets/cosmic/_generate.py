"""Events that look like the detector's, for training without any file.

Cosmic muons cross the detector, at any time, so that their images are shifted and cut off; a
neutrino of the beam, always at the right time, makes a vertex inside with tracks and showers. All
three planes see the same particles. How many there are and what they leave was chosen so that
occupied pixels, signals and shares of labels are like those of CosmicTagger's five public events.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchkiln.datasets.cosmic._deposit_kernels import (
    DRIFT,
    HEIGHT,
    LENGTH,
    noise,
    shower,
    specks,
    walk,
)
from torchkiln.datasets.cosmic._event import (
    BACKGROUND,
    COSMIC,
    NEUTRINO,
    NUM_TICKS,
    NUM_WIRES,
    CosmicEvent,
)

Vector = NDArray[np.float64]

_THRESHOLD = 5.0
# Left in one pixel of length by a particle at the speed of light.
_CHARGE = 66.0
# Pixels that an event may hit, a power of two; ten times what is usual.
_NUM_SLOTS = 2**20
_MOST_MUONS = 24
_HALF = NUM_TICKS // 2
_LOW, _HIGH = np.array([-DRIFT, 0.0, 0.0]), np.array([DRIFT, HEIGHT, LENGTH])
_LONGEST = float(np.linalg.norm(_HIGH - _LOW))
# The wires that are read first hear most noise: plane 0 in one half, plane 1 in the other.
_NOISE_RUNS = {
    (0, 0): 900,
    (0, 1): 9500,
    (1, 0): 9500,
    (1, 1): 900,
    (2, 0): 190,
    (2, 1): 190,
}


def generate_event(seed: int, index: int) -> CosmicEvent:
    """Return an event, always the same for the same two numbers."""
    canvas = _Canvas(np.random.default_rng((seed, index)))
    for _ in range(min(canvas.rng.poisson(7.5), _MOST_MUONS)):
        _cosmic_muon(canvas)
    if canvas.rng.random() < 0.2:
        _cosmic_shower(canvas)
    _neutrino(canvas)
    _radioactivity(canvas)
    for (plane, half), num_runs in _NOISE_RUNS.items():
        canvas.noise(plane, half, canvas.rng.poisson(num_runs))
    return canvas.event()


@dataclass(frozen=True, slots=True)
class _Particle:
    """Where a particle starts and how it flies; `shift` is how many ticks it comes too late."""

    kind: int
    start: Vector
    direction: Vector
    shift: float = 0.0

    def turned(self, rng: np.random.Generator, width: float) -> _Particle:
        """Another one from the same place, in a direction that differs by some `width`."""
        turned = _unit(self.direction + width * rng.normal(size=3))
        return _Particle(self.kind, self.start.copy(), turned, self.shift)


class _Canvas:
    """The charge of one event, by who left it, before it becomes pixels."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self._pixels = np.full(_NUM_SLOTS, -1, np.int32)
        self._charges = np.zeros((_NUM_SLOTS, 3), np.float32)

    def track(
        self, particle: _Particle, length: float, *, charge: float = _CHARGE, bend: float = 0.0015
    ) -> None:
        """Draw a track; `particle` is moved to its end."""
        walk(
            self.rng,
            self._pixels,
            self._charges,
            particle.kind,
            particle.start,
            particle.direction,
            length,
            charge,
            bend,
            particle.shift,
        )

    def shower(self, particle: _Particle, num_electrons: int, reach: float, spread: float) -> None:
        shower(
            self.rng,
            self._pixels,
            self._charges,
            particle.kind,
            particle.start,
            particle.direction,
            num_electrons,
            reach,
            spread,
            _CHARGE,
            particle.shift,
        )

    def specks(self, kind: int, centre: Vector, reach: Vector, number: int, shift: float) -> None:
        specks(
            self.rng,
            self._pixels,
            self._charges,
            kind,
            centre,
            reach,
            number,
            0.7 * _CHARGE,
            shift,
        )

    def noise(self, plane: int, half: int, num_runs: int) -> None:
        noise(
            self.rng,
            self._pixels,
            self._charges,
            BACKGROUND,
            plane,
            half * _HALF,
            (half + 1) * _HALF,
            num_runs,
            _THRESHOLD,
        )

    def event(self) -> CosmicEvent:
        slots = np.flatnonzero(self._pixels >= 0)
        slots = slots[self._charges[slots].sum(axis=1) >= _THRESHOLD]
        slots = slots[np.argsort(self._pixels[slots])]
        pixels, charges = self._pixels[slots], self._charges[slots]
        return CosmicEvent(
            planes=(pixels // (NUM_WIRES * NUM_TICKS)).astype(np.uint8),
            ticks=pixels % NUM_TICKS,
            wires=pixels // NUM_TICKS % NUM_WIRES,
            values=charges.sum(axis=1),
            # Whoever left most.
            labels=charges.argmax(axis=1).astype(np.uint8),
        )


def _cosmic_muon(canvas: _Canvas) -> None:
    """A muon from above, with the electrons that it knocks out on its way."""
    rng = canvas.rng
    # Intensity falls with the square of the cosine of the angle to the vertical.
    down = max(rng.random() ** (1 / 3), 0.15)
    around = rng.uniform(0, 2 * math.pi)
    aside = math.sqrt(1 - down**2)
    direction = np.array([aside * math.cos(around), -down, aside * math.sin(around)])
    # Through a random point of the detector, from where it enters.
    point = _random_place(rng)
    faces = np.where(direction > 0, _LOW, _HIGH)
    to_entry = float(np.min((point - faces) / direction)) - 1e-6
    muon = _Particle(COSMIC, point - direction * to_entry, direction, rng.uniform(-_HALF, _HALF))
    # Every fifth stops inside, and slow ones are scattered more.
    stops = rng.random() < 0.2
    length = rng.uniform(100, 1200) if stops else _LONGEST
    while length > 0 and _is_in_detector(muon.start):
        piece = min(rng.exponential(170.0), length)
        canvas.track(muon, piece, bend=0.002 if stops else 0.0006)
        length -= piece
        _knocked_out(canvas, muon)


def _knocked_out(canvas: _Canvas, particle: _Particle) -> None:
    """An electron beside a track, and what it leaves further away."""
    rng = canvas.rng
    canvas.track(particle.turned(rng, 0.5), 3 + rng.exponential(9.0), bend=0.12)
    _photons(canvas, particle, 1.0, 24.0)


def _photons(canvas: _Canvas, particle: _Particle, number: float, reach: float) -> None:
    """Photons that are absorbed some way off; not all of them could be attributed."""
    for kind, share in ((particle.kind, 0.9), (BACKGROUND, 0.1)):
        drawn = canvas.rng.poisson(share * number)
        canvas.specks(kind, particle.start, np.full(3, reach), drawn, particle.shift)


def _cosmic_shower(canvas: _Canvas) -> None:
    rng = canvas.rng
    start = _random_place(rng)
    direction = _unit(np.array([0.5, -1.5, 0.5]) * rng.normal(size=3) - (0, 0.8, 0))
    particle = _Particle(COSMIC, start, direction, rng.uniform(-_HALF, _HALF))
    _draw_shower(canvas, particle, rng.uniform(0.3, 1.0))


def _neutrino(canvas: _Canvas) -> None:
    """A vertex inside, with what flies out of it: mostly forward, along the beam."""
    rng = canvas.rng
    # Not too close to a wall, and with some way to fly.
    vertex = rng.uniform(_LOW + 60.0, _HIGH - (60.0, 60.0, 180.0))
    forward = _Particle(NEUTRINO, vertex, np.array([0.0, 0.0, 1.0]))
    drawn = rng.random()
    if drawn < 0.6:
        muon = forward.turned(rng, 0.35)
        canvas.track(muon, 80 + rng.exponential(220.0), bend=0.004)
        _knocked_out(canvas, muon)
    elif drawn < 0.85:
        _draw_shower(canvas, forward.turned(rng, 0.3), rng.uniform(0.3, 1.6))
    for _ in range(1 + rng.poisson(0.7)):
        # Protons are slow: short, straight and bright.
        proton = forward.turned(rng, 0.8)
        canvas.track(proton, 8 + rng.exponential(30.0), charge=2.2 * _CHARGE, bend=0.004)
    for _ in range(rng.poisson(0.7)):
        pion = forward.turned(rng, 0.7)
        canvas.track(pion, 25 + rng.exponential(90.0), charge=1.1 * _CHARGE, bend=0.008)
        canvas.track(pion.turned(rng, 1.0), 5 + rng.exponential(25.0), bend=0.03)
    if rng.random() < 0.35:
        # A neutral pion becomes two photons, which show only where they are converted.
        for _ in range(2):
            photon = forward.turned(rng, 0.7)
            photon.start[:] += photon.direction * rng.exponential(55.0)
            _draw_shower(canvas, photon, rng.uniform(0.1, 0.6))
    _photons(canvas, forward, 9.0, 90.0)


def _radioactivity(canvas: _Canvas) -> None:
    """Decays in the argon, everywhere."""
    middle, reach = (_LOW + _HIGH) / 2, (_HIGH - _LOW) / 2
    canvas.specks(BACKGROUND, middle, reach, canvas.rng.poisson(330), 0.0)


def _draw_shower(canvas: _Canvas, particle: _Particle, energy: float) -> None:
    """A shower whose number of electrons grows with its energy, in GeV, and its length little."""
    reach = 55.0 + 25.0 * math.log1p(4 * energy)
    canvas.shower(particle, 6 + int(110 * energy), reach, 22.0)
    # Photons far from the axis.
    centre = _Particle(
        particle.kind,
        particle.start + particle.direction * reach,
        particle.direction,
        particle.shift,
    )
    _photons(canvas, centre, 40 * energy, 60.0)


def _random_place(rng: np.random.Generator) -> Vector:
    return rng.uniform(_LOW, _HIGH)


def _is_in_detector(place: Vector) -> bool:
    return bool(((place >= _LOW) & (place < _HIGH)).all())


def _unit(vector: Vector) -> Vector:
    return vector / math.sqrt(float(vector @ vector))
