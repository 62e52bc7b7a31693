"""A policy as an ONNX graph of basic operators. The package `onnx` is imported in here only."""

from typing import Any

import numpy as np

from algd.networks.numpy_policy import Diffusion, Network, PolicyData
from algd.types import UserError

# Old enough for every runtime of the last years.
OPSET, IR_VERSION = 17, 8
OPERATORS = {"relu": "Relu", "tanh": "Tanh", "elu": "Elu"}


def onnx_model(data: PolicyData, sampled: bool) -> bytes:
    """`observation [batch, obs] -> action [batch, action]`; a sampled one also takes `noise`,
    standard normal numbers `[batch, *data.noise_shape]`."""
    try:
        from onnx import TensorProto, checker, helper
    except ImportError as error:
        raise UserError("ONNX needs an extra package: pip install 'algd[export]'") from error
    graph = _Graph()
    build = _diffusion if isinstance(data.policy, Diffusion) else _gaussian
    action = _in_box(graph, build(graph, data, sampled), data)
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
            x = self.node(OPERATORS[network.activation], self.dense(x, weight, bias))
        return x

    def noise(self, row: int) -> str:
        return self.node("Gather", "noise", self.constant(row, np.int64), axis=1)


def _diffusion(graph: _Graph, data: PolicyData, sampled: bool) -> str:
    """The latent at the end of the reverse chain, level by level."""
    policy: Any = data.policy
    net: Network = policy.network
    size, inputs = len(data.low), data.obs_size
    of_obs, of_action, of_level = np.split(net.weights[0], [inputs, inputs + size])
    state_half = graph.dense("observation", of_obs, net.biases[0])
    levels = policy.embedding @ of_level
    # A product with zeros has the right number of rows.
    x = graph.node("MatMul", "observation", np.zeros((inputs, size)))
    if sampled:
        x = graph.node("Mul", graph.noise(0), policy.start)
    for k in reversed(range(len(policy.drift))):
        inside = _squashed(graph, x, data) if policy.squash == "tanh" else x
        first = graph.node("Add", graph.dense(inside, of_action, levels[k]), state_half)
        hidden = graph.hidden(graph.node("Relu", first), net, 1)
        x = graph.node("Add", x, _move(graph, hidden, x, policy, k))
        if sampled and policy.scales[k]:
            x = graph.node("Add", x, graph.node("Mul", graph.noise(k + 1), policy.scales[k]))
    return x


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
