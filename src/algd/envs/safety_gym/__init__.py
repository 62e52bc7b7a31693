"""The paper's five Safety-Gym tasks on today's MuJoCo and Gymnasium."""
