"""Train on an environment of your own: a cart that earns speed but pays for too much of it.

python examples/own_environment.py [STEPS] [DIRECTORY]
"""

import sys

import gymnasium
import numpy as np

import algd


class Corridor(gymnasium.Env):
    """Push a cart to the right; each step faster than 0.5 costs 1."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        """Start near the left end, at rest."""
        super().reset(seed=seed)
        self.position, self.speed = self.np_random.uniform(-0.1, 0.1), 0.0
        return self.observe(), {}

    def step(self, action):
        """Advance by one step; the cost goes into `info`."""
        self.speed = 0.9 * self.speed + 0.1 * float(action[0])
        self.position += self.speed
        return self.observe(), self.speed, False, False, {"cost": float(self.speed > 0.5)}

    def observe(self):
        """Position and speed."""
        return np.array([self.position, self.speed], np.float32)


def main(steps: int = 4000, directory: str = "runs/corridor") -> None:
    """Train, then drive one episode with what was learnt."""
    # Five fast steps in an episode of 50 are allowed, on average.
    agent = algd.Agent("algd", Corridor, budget=5.0, horizon=50, eval_episodes=4, out=directory)
    agent.learn(steps)
    env = gymnasium.wrappers.TimeLimit(Corridor(), 50)
    obs, _ = env.reset(seed=0)
    earned, cost, done = 0.0, 0.0, False
    while not done:
        action, forecast = agent.predict(obs, return_info=True)
        obs, reward, _, done, info = env.step(action)
        earned, cost = earned + float(reward), cost + info["cost"]
    print(f"return {earned:.1f}, cost {cost:.0f} of 5")
    print(f"in the last step the critics expected a discounted cost of {forecast.cost[0]:.2f}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(*([int(arguments[0]), *arguments[1:]] if arguments else []))
