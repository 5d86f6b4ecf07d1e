"""Turns Moonshine's two networks from ONNX Runtime's own format into standard ONNX.

Usage: convert_moonshine.py <directory of the .ort files> <output directory>

ONNX Runtime writes a loaded network back as ONNX, but with fused operators of its own. Each is
replaced here by the standard operators that it stands for, so that any runtime can load the result.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

NETWORKS = {"encoder": "encoder_model.ort", "decoder": "decoder_model_merged.ort"}
OPSET = 18


def main() -> None:
    source, target = map(Path, sys.argv[1:3])
    target.mkdir(parents=True, exist_ok=True)
    # One for both, or the numbers in the names would not be those of SHA256SUMS.
    rewriter = Rewriter()
    for name, file in NETWORKS.items():
        raw = target / f"{name}.raw.onnx"
        write_as_onnx(source / file, raw)
        model = onnx.load(raw)
        rewriter.graph(model.graph)
        del model.opset_import[:]
        model.opset_import.append(helper.make_opsetid("", OPSET))
        path = target / f"moonshine-tiny-en.{name}.onnx"
        onnx.save(model, path)
        raw.unlink()
        # It loads, so every operator and shape is known.
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        print(f"{path.name}: {path.stat().st_size} bytes")


def write_as_onnx(source: Path, target: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.save_model_format", "ONNX")
    options.optimized_model_filepath = str(target)
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


class Rewriter:
    """Rewrites the nodes of a graph and of the graphs inside it. Names are counted through, so
    that the same input always gives the same file."""

    def __init__(self) -> None:
        self.count = 0
        self.nodes = []

    def graph(self, graph) -> None:
        outer, self.nodes = self.nodes, []
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    self.graph(attribute.g)
            if node.domain == "com.microsoft":
                self.rewrite(node)
            else:
                self.nodes.append(node)
        graph.name = graph.name or f"g_{self.count}"
        del graph.node[:]
        graph.node.extend(self.nodes)
        self.nodes = outer

    def rewrite(self, node) -> None:
        rules = {
            "MatMulIntegerToFloat": self.integer_product,
            "DynamicQuantizeMatMul": self.integer_product,
            "Gelu": self.gelu,
            "QuickGelu": self.quick_gelu,
            "FusedMatMul": self.product,
            "FusedConv": self.convolution,
            "SkipLayerNormalization": self.normalization,
        }
        if node.op_type not in rules:
            raise SystemExit(f"no rule for the operator {node.op_type}")
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        inputs = list(node.input) + [""] * 8
        rules[node.op_type](node, inputs, attributes)

    def add(self, operator, inputs, outputs=1, **attributes):
        names = []
        for _ in range(outputs):
            self.count += 1
            names.append(f"std_{self.count}")
        self.nodes.append(
            helper.make_node(operator, inputs, names, name=f"n_{self.count}", **attributes)
        )
        return names if outputs > 1 else names[0]

    def constant(self, value):
        self.count += 1
        name = f"c_{self.count}"
        tensor = numpy_helper.from_array(np.float32(value), name)
        self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        return name

    def call(self, made, wanted) -> None:
        """Gives the output that was made last under this name the name that is wanted."""
        for node in reversed(self.nodes):
            for place, name in enumerate(node.output):
                if name == made:
                    node.output[place] = wanted
                    return

    def integer_product(self, node, inputs, _attributes) -> None:
        if node.op_type == "DynamicQuantizeMatMul":
            left, right, right_scale, right_zero, bias = inputs[:5]
            left, left_scale, left_zero = self.add("DynamicQuantizeLinear", [left], 3)
        else:
            left, right, left_scale, right_scale, left_zero, right_zero, bias = inputs[:7]
        zeros = [left_zero] + ([right_zero] if right_zero else [])
        product = self.add("MatMulInteger", [left, right, *zeros])
        product = self.add("Cast", [product], to=TensorProto.FLOAT)
        scale = self.add("Mul", [left_scale, right_scale])
        product = self.add("Mul", [product, scale])
        if bias:
            product = self.add("Add", [product, bias])
        self.call(product, node.output[0])

    def gelu(self, node, inputs, _attributes) -> None:
        x = inputs[0]
        y = self.add("Mul", [x, self.constant(0.70710678)])
        y = self.add("Erf", [y])
        y = self.add("Add", [y, self.constant(1)])
        y = self.add("Mul", [x, y])
        self.call(self.add("Mul", [y, self.constant(0.5)]), node.output[0])

    def quick_gelu(self, node, inputs, attributes) -> None:
        x = inputs[0]
        y = self.add("Mul", [x, self.constant(attributes.get("alpha", 1.702))])
        y = self.add("Sigmoid", [y])
        self.call(self.add("Mul", [x, y]), node.output[0])

    def product(self, node, inputs, attributes) -> None:
        left, right = inputs[:2]
        if attributes.get("transA"):
            left = self.add("Transpose", [left], perm=[0, 1, 3, 2])
        if attributes.get("transB"):
            right = self.add("Transpose", [right], perm=[0, 1, 3, 2])
        y = self.add("MatMul", [left, right])
        if (alpha := attributes.get("alpha", 1.0)) != 1.0:
            y = self.add("Mul", [y, self.constant(alpha)])
        self.call(y, node.output[0])

    def convolution(self, node, _inputs, attributes) -> None:
        activation = attributes.pop("activation").decode()
        attributes.pop("activation_params", None)
        if activation not in ("Tanh", "Relu"):
            raise SystemExit(f"no rule for the activation {activation}")
        y = self.add("Conv", list(node.input), **attributes)
        self.call(self.add(activation, [y]), node.output[0])

    def normalization(self, node, inputs, attributes) -> None:
        y = self.add("Add", inputs[:2])
        if inputs[4]:
            y = self.add("Add", [y, inputs[4]])
        weights = [inputs[2]] + ([inputs[3]] if inputs[3] else [])
        z = self.add("LayerNormalization", [y, *weights], axis=-1, epsilon=attributes["epsilon"])
        if len(node.output) > 3 and node.output[3]:
            self.call(y, node.output[3])
            for other in self.nodes:
                for place, name in enumerate(other.input):
                    if name == y:
                        other.input[place] = node.output[3]
        self.call(z, node.output[0])


if __name__ == "__main__":
    main()
