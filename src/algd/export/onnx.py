"""A policy as an ONNX graph of basic operators. The package `onnx` is imported in here only."""

from typing import Any

import numpy as np

from algd.networks.numpy_policy import Critics, Diffusion, Network, PolicyData, fixed_noise
from algd.types import UserError

# Old enough for every runtime of the last years.
OPSET, IR_VERSION = 17, 8
OPERATORS = {"relu": "Relu", "tanh": "Tanh", "elu": "Elu"}
CANDIDATES = 1
"""The axis of several chains for one observation."""


def onnx_model(data: PolicyData, sampled: bool) -> bytes:
    """`observation [batch, obs] -> action [batch, action]`; a sampled one also takes `noise`,
    standard normal numbers `[batch, *data.noise_shape]`."""
    try:
        from onnx import TensorProto, checker, helper
    except ImportError as error:
        raise UserError("ONNX needs an extra package: pip install 'algd[export]'") from error
    graph = _Graph()
    if not isinstance(data.policy, Diffusion):
        action = _in_box(graph, _gaussian(graph, data, sampled), data)
    elif sampled or not data.policy.candidates:
        noise = [graph.noise(row) for row in range(data.noise_shape[0])] if sampled else []
        action = _in_box(graph, _diffusion(graph, data, noise), data)
    else:
        action = _best(graph, data, data.policy.candidates)
    graph.node("Identity", action, output="action")

    def tensor(name: str, *shape: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])

    inputs = [tensor("observation", data.obs_size)]
    inputs += [tensor("noise", *data.noise_shape)] if sampled else []
    outputs = [tensor("action", len(data.low))]
    model = helper.make_model(
        helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET)],
        producer_name="algd",
    )
    model.ir_version = IR_VERSION
    checker.check_model(model)
    return model.SerializeToString()


class _Graph:
    """Nodes and constants in the order of their making; a value is its name."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        from onnx import numpy_helper

        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, operator: str, *inputs: Any, output: str = "", **attributes: Any) -> str:
        from onnx import helper

        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        output = output or f"value{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [output], **attributes))
        return output

    def affine(self, x: str, factor: Any, shift: Any) -> str:
        return self.node("Add", self.node("Mul", x, factor), shift)

    def dense(self, x: str, weight: np.ndarray, bias: np.ndarray) -> str:
        return self.node("Add", self.node("MatMul", x, weight), bias)

    def hidden(self, x: str, network: Network, first: int = 0) -> str:
        """All hidden layers from that one on."""
        for weight, bias in list(zip(network.weights, network.biases, strict=True))[first:-1]:
            x = self.activation(self.dense(x, weight, bias), network)
        return x

    def activation(self, x: str, network: Network) -> str:
        if network.activation == "silu":
            return self.node("Mul", x, self.node("Sigmoid", x))
        return self.node(OPERATORS[network.activation], x)

    def beside(self, x: str) -> str:
        """Rows with an axis for candidates."""
        return self.node("Unsqueeze", x, self.constant([CANDIDATES], np.int64))

    def noise(self, row: int) -> str:
        return self.node("Gather", "noise", self.constant(row, np.int64), axis=1)


def _diffusion(graph: _Graph, data: PolicyData, noise: list[Any], candidates: bool = False) -> str:
    """The latent at the end of the reverse chain, level by level; `noise` is that of the start and
    of each level. Several chains for an observation lie on an axis of their own."""
    policy: Any = data.policy
    net: Network = policy.network
    size, inputs = len(data.low), data.obs_size
    of_obs, of_action, of_level = np.split(net.weights[0], [inputs, inputs + size])
    state_half = graph.dense("observation", of_obs, net.biases[0])
    levels = policy.embedding @ of_level
    # A product with zeros has the right number of rows.
    x = graph.node("MatMul", "observation", np.zeros((inputs, size)))
    if candidates:
        state_half, x = graph.beside(state_half), graph.beside(x)
    if noise:
        x = graph.node("Add", x, graph.node("Mul", noise[0], policy.start))
    for k in reversed(range(len(policy.drift))):
        inside = _squashed(graph, x, data) if policy.squash == "tanh" else x
        first = graph.node("Add", graph.dense(inside, of_action, levels[k]), state_half)
        hidden = graph.hidden(graph.node("Relu", first), net, 1)
        x = graph.node("Add", x, _move(graph, hidden, x, policy, k))
        if noise and policy.scales[k]:
            x = graph.node("Add", x, graph.node("Mul", noise[k + 1], policy.scales[k]))
    return x


def _best(graph: _Graph, data: PolicyData, candidates: int) -> str:
    """Of chains with fixed noise the action of the lowest energy."""
    assert data.critics is not None
    noise = list(np.moveaxis(fixed_noise(candidates, *data.noise_shape), 1, 0))
    actions = _in_box(graph, _diffusion(graph, data, noise, candidates=True), data)
    energies = _energies(graph, data.critics, actions, data.obs_size)
    lowest = graph.node("ArgMin", energies, axis=CANDIDATES, keepdims=1)
    return graph.node("GatherND", actions, lowest, batch_dims=1)


def _energies(graph: _Graph, critics: Critics, actions: str, inputs: int) -> str:
    """`[batch, candidates]`: what the critics make of actions; low is good."""

    def values(ensemble: Network) -> list[str]:
        found = []
        for member in range(len(ensemble.weights[0])):
            weights = tuple(weight[member] for weight in ensemble.weights)
            biases = tuple(bias[member] for bias in ensemble.biases)
            net = Network(weights, biases, ensemble.activation)
            of_obs, of_action = np.split(weights[0], [inputs])
            state_half = graph.beside(graph.dense("observation", of_obs, biases[0]))
            first = graph.node("Add", graph.node("MatMul", actions, of_action), state_half)
            hidden = graph.hidden(graph.activation(first, net), net, 1)
            found.append(graph.dense(hidden, weights[-1], biases[-1]))
        return found

    last = graph.constant([2], np.int64)
    minus_q = graph.node("Squeeze", graph.node("Neg", graph.node("Min", *values(critics.q))), last)
    if critics.objective == "reward":
        return minus_q
    costs = values(critics.qc)
    qc = graph.node("Mean", *costs)
    if critics.spread and len(costs) > 1:
        squares = [graph.node("Pow", graph.node("Sub", cost, qc), 2.0) for cost in costs]
        variance = graph.node("Div", graph.node("Sum", *squares), float(len(costs) - 1))
        qc = graph.node("Add", qc, graph.node("Mul", graph.node("Sqrt", variance), critics.spread))
    excess = graph.node("Sub", qc, critics.limit)
    if critics.objective == "plain":
        weighed = graph.node("Mul", excess, critics.lam)
    else:
        active = graph.node("Relu", graph.affine(excess, critics.rho, critics.lam))
        bent = active
        if critics.cap:
            bent = graph.node("Min", active, np.maximum(critics.lam, 0) + critics.cap)
        beyond = graph.node("Sub", graph.node("Mul", active, 2.0), bent)
        weighed = graph.node("Div", graph.node("Mul", beyond, bent), 2 * critics.rho)
    return graph.node("Add", minus_q, graph.node("ReduceSum", weighed, last, keepdims=0))


def _move(graph: _Graph, hidden: str, x: str, policy: Any, k: int) -> str:
    """What the score of level k moves the latent by."""
    drift, weight, bias = policy.drift[k], policy.network.weights[-1], policy.network.biases[-1]
    if policy.levels is None:
        return graph.dense(hidden, drift * weight, drift * bias)
    (of_mean, of_log), (mean_bias, log_bias) = np.split(weight, 2, axis=1), np.split(bias, 2)
    low, high = policy.log_bounds
    log = graph.dense(hidden, of_log, log_bias)
    log = graph.node("Max", graph.node("Min", log, high), low)
    own = graph.node("Exp", graph.node("Mul", log, 2.0))
    variance = graph.node("Add", own, policy.levels[k] ** 2)
    ahead = graph.node("Sub", graph.dense(hidden, of_mean, mean_bias), x)
    return graph.node("Mul", graph.node("Div", ahead, variance), drift)


def _gaussian(graph: _Graph, data: PolicyData, sampled: bool) -> str:
    """The mean, plus noise in a sampled graph."""
    policy: Any = data.policy
    size, net = len(data.low), policy.network
    x = "observation"
    if policy.obs_mean is not None:
        x = graph.node("Div", graph.node("Sub", x, policy.obs_mean), policy.obs_std)
        x = graph.node("Max", graph.node("Min", x, policy.obs_clip), -policy.obs_clip)
    x = graph.hidden(x, net)
    weight, bias = net.weights[-1], net.biases[-1]
    mean = graph.dense(x, weight[:, :size], bias[:size])
    if not sampled:
        return mean
    if policy.log_std is not None:
        return graph.node("Add", mean, graph.node("Mul", graph.noise(0), np.exp(policy.log_std)))
    low, high = policy.log_std_bounds
    log_std = graph.dense(x, weight[:, size:], bias[size:])
    std = graph.node("Exp", graph.node("Max", graph.node("Min", log_std, high), low))
    return graph.node("Add", mean, graph.node("Mul", graph.noise(0), std))


def _squashed(graph: _Graph, latent: str, data: PolicyData) -> str:
    unit = graph.node("Tanh", latent)
    if data.policy.squash == "clip":
        unit = graph.node("Max", graph.node("Min", latent, 1.0), -1.0)
    return graph.affine(unit, (data.high - data.low) / 2, (data.high + data.low) / 2)


def _in_box(graph: _Graph, latent: str, data: PolicyData) -> str:
    action = _squashed(graph, latent, data)
    return graph.node("Max", graph.node("Min", action, data.high), data.low)
