"""Three ways for a diffusion policy to keep its action in the box [low, high].

The chain runs on a latent x, of which the score network sees `network_input(x)`, and ends in
`action(x)`. Monte Carlo proposals are drawn around `centre(x)` in a space of their own, `clip`
keeps them in the box, the critics judge them at `proposed_action`, and `in_latent` makes energies
and action gradients functions of the latent.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

BoundsName = Literal["boltzmann", "tanh", "clip"]
Latent = Float[Array, "*batch action"]
Action = Float[Array, "*batch action"]
Energies = Float[Array, "*batch"]
Temperature = float | Float[Array, ""]


def log_slope(latent: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """log(1 - tanh^2 x) = 2 (log 2 - x - softplus(-2x)), without cancellation at large |x|."""
    return 2.0 * (jnp.log(2.0) - latent - jax.nn.softplus(-2.0 * latent))


class Box(NamedTuple):
    """Where actions lie."""

    low: Float[Array, " action"]
    high: Float[Array, " action"]

    def of_unit(self, unit: Float[Array, "*batch action"]) -> Action:
        """From [-1, 1] to the box, linearly."""
        return unit * self.half_width + (self.high + self.low) / 2.0

    @property
    def half_width(self) -> Float[Array, " action"]:
        """Half the length of each side."""
        return (self.high - self.low) / 2.0


class Boltzmann(NamedTuple):
    r"""The density exp(-L(a)/beta) on the box, carried to the latent with its Jacobian.

    In x with a = tanh(x) it is that of $L(\tanh x) - \beta \sum_j \log(1 - \tanh^2 x_j)$.
    """

    box: Box

    def action(self, latent: Latent) -> Action:
        """Squashed by a tanh."""
        return self.box.of_unit(jnp.tanh(latent))

    network_input = action
    proposed_action = action

    def centre(self, latent: Latent) -> Latent:
        """The latent itself."""
        return latent

    def clip(self, proposed: Latent) -> Latent:
        """Every latent's action is in the box."""
        return proposed

    def in_latent(
        self, energies: Energies, grads: Action, proposed: Latent, beta: Temperature
    ) -> tuple[Energies, Latent]:
        """With the Jacobian of the tanh."""
        unit = jnp.tanh(proposed)
        slope = 1.0 - unit**2
        return (
            energies - beta * jnp.sum(log_slope(proposed), axis=-1),
            grads * self.box.half_width * slope + 2.0 * beta * unit,
        )


class Tanh(NamedTuple):
    """Squashed without Jacobian, proposals around the action itself (authors' program)."""

    box: Box

    def action(self, latent: Latent) -> Action:
        """Squashed by a tanh."""
        return self.box.of_unit(jnp.tanh(latent))

    network_input = action
    centre = action

    def clip(self, proposed: Action) -> Action:
        """Cut to the box."""
        return jnp.clip(proposed, self.box.low, self.box.high)

    def proposed_action(self, proposed: Action) -> Action:
        """A proposal is an action, inside the box or not."""
        return proposed

    def in_latent(
        self, energies: Energies, grads: Action, proposed: Action, beta: Temperature
    ) -> tuple[Energies, Action]:
        """As they are."""
        return energies, grads


class Clip(NamedTuple):
    """No latent but the action in units of the box, clipped when executed (paper's text)."""

    box: Box

    def action(self, latent: Latent) -> Action:
        """Cut to the box."""
        return self.box.of_unit(jnp.clip(latent, -1.0, 1.0))

    def network_input(self, latent: Latent) -> Latent:
        """The latent itself."""
        return latent

    centre = network_input

    def clip(self, proposed: Latent) -> Latent:
        """Cut to the unit box."""
        return jnp.clip(proposed, -1.0, 1.0)

    def proposed_action(self, proposed: Latent) -> Action:
        """Outside the box too."""
        return self.box.of_unit(proposed)

    def in_latent(
        self, energies: Energies, grads: Action, proposed: Latent, beta: Temperature
    ) -> tuple[Energies, Latent]:
        """In units of the box."""
        return energies, grads * self.box.half_width


Bounding = Boltzmann | Tanh | Clip
BOUNDING: dict[BoundsName, type[Bounding]] = {"boltzmann": Boltzmann, "tanh": Tanh, "clip": Clip}
