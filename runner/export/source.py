"""The numpy source of a function that JAX has traced."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, Literal

LONGEST = 60  # characters of an expression that stands inside another one
# How tightly an expression binds.
COMPARISON, OR, XOR, AND, SUM, PRODUCT, SIGN, ATOM = range(8)
OPERATORS = {"add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT), "div": ("/", PRODUCT)}
OPERATORS |= {"eq": ("==", COMPARISON), "ne": ("!=", COMPARISON), "lt": ("<", COMPARISON), "le": ("<=", COMPARISON)}
OPERATORS |= {"gt": (">", COMPARISON), "ge": (">=", COMPARISON), "or": ("|", OR), "xor": ("^", XOR), "and": ("&", AND)}
FUNCTIONS = {"max": "maximum", "min": "minimum", "pow": "power", "is_finite": "isfinite"}
FUNCTIONS |= {name: name for name in ("abs", "ceil", "cos", "cosh", "exp", "exp2", "expm1", "floor", "log", "log1p")}
FUNCTIONS |= {name: name for name in ("sign", "sin", "sinh", "sqrt", "square", "tan", "tanh")}
FORMATS = {  # operands in braces, and how tightly the expression binds
    "clamp": ("np.clip({1}, {0}, {2})", ATOM),
    "erf": ("erf({0})", ATOM),
    "erfc": ("erfc({0})", ATOM),
    "logistic": ("0.5 * (np.tanh(0.5 * ({0})) + 1)", PRODUCT),  # never overflows
    "neg": ("-({0})", SIGN),
    "not": ("np.invert({0})", ATOM),  # ~ of a Python bool is a number
    "rsqrt": ("1 / np.sqrt({0})", PRODUCT),
}
REDUCTIONS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod"}
REDUCTIONS |= {"reduce_and": "all", "reduce_or": "any"}
SAME = ("copy", "copy_p", "stop_gradient", "optimization_barrier")
CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint", "custom_jvp_call", "custom_vjp_call")
CALLED = ("jaxpr", "call_jaxpr")  # the parameter with the program that is called
HELPERS = {
    "erf": "erf = np.vectorize(math.erf, otypes=[np.float32])",
    "erfc": "erfc = np.vectorize(math.erfc, otypes=[np.float32])",
    "conv": '''\
def conv(x, kernel, strides, padding):
    """x [n, height, width, channels], kernel [height, width, channels, features]."""
    x = np.pad(x, ((0, 0), *padding, (0, 0)))
    x = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], axis=(1, 2))[:, :: strides[0], :: strides[1]]
    return np.einsum("nhwcij,ijcf->nhwf", x, kernel)''',
}
ARRAY = re.compile(r'arrays\["([^"]*)"\]')


class Value(NamedTuple):
    """What stands in the source for an array."""

    text: str
    level: int = ATOM
    is_full: bool = True  # False: numpy broadcasts it to the shape that it has in the traced program
    array: np.ndarray | None = None  # of a constant

    def within(self, level: int) -> str:
        """The text as part of an expression that binds so tightly."""
        return self.text if self.level >= level else f"({self.text})"


@dataclass(eq=False)
class Node:
    """An array of the traced program."""

    shape: tuple[Any, ...]  # of int, or of expressions in n, the number of observations
    dtype: Any
    value: Value | None = None  # known of inputs and constants
    equation: Any = None  # that makes it
    operands: list["Node"] = field(default_factory=list)
    index: int = 0  # among the results of the equation
    num_uses: int = 0

    @property
    def text(self) -> str:
        """The text with the whole shape."""
        value, shape = self.value, shape_text(self.shape)
        if value.is_full or not self.shape:
            return value.text
        if np.ndim(value.array) == 0 and value.array is not None:
            return f"np.full({shape}, {value.text}, {dtype_text(self.dtype)})"
        return f"np.broadcast_to({value.text}, {shape})"

    @property
    def atom(self) -> str:
        """The same, before a dot or a bracket."""
        return self.value.within(ATOM) if self.value.is_full else self.text


@dataclass
class Source:
    """Lines of numpy that compute the outputs of a program, and the arrays that they read."""

    arrays: dict[str, np.ndarray]  # name -> array
    lines: list[str]
    outputs: list[str]  # expressions
    helpers: list[str]  # definitions that the lines need


def translate(program: ClosedJaxpr, inputs: Sequence[str | tuple[str, Any]]) -> Source:
    """The numpy source of a program, without what its outputs do not need.

    Args:
        program: traced, with the number of observations as the symbolic dimension n.
        inputs: for each input the name of a variable, or (name, array) of a constant.

    Raises:
        ValueError: an operation that has no translation; the message has the place that it comes from.
    """
    translation, nodes = Translation(), []
    for variable, given in zip(program.jaxpr.invars, inputs, strict=True):
        value = Value(given) if isinstance(given, str) else translation.constant(*given)
        nodes.append(Node(variable.aval.shape, variable.aval.dtype, value))
    return translation.write(translation.flatten(program.jaxpr, program.consts, nodes))


class Translation:
    """A program that is being translated."""

    def __init__(self):
        self.arrays, self.lines = {}, []

    def constant(self, name: str, array: Any) -> Value:
        """A number stands in the text, an array is read by its name."""
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):  # a random key, which no greedy policy reads
            return Value("key")
        array = np.asarray(array)
        if array.ndim == 0:
            text = str(array)
            if array.dtype.kind == "f" and not np.isfinite(array):
                text = text.replace("inf", "np.inf").replace("nan", "np.nan")
            return Value(text, SIGN if text.startswith("-") else ATOM, array=array)
        while name in self.arrays and not np.array_equal(self.arrays[name], array, equal_nan=array.dtype.kind == "f"):
            name += "'"
        self.arrays[name] = array
        return Value(f'arrays["{name}"]', array=array)

    def literal(self, array: Any) -> Node:
        """A constant without a name."""
        array = np.asarray(array)
        return Node(array.shape, array.dtype, self.constant("constant", array))

    def flatten(self, jaxpr: Any, consts: Sequence[Any], arguments: list[Node]) -> list[Node]:
        """The outputs of a program, with the programs that it calls in their places."""
        nodes = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*map(self.literal, consts), *arguments], strict=True))
        read = lambda x: self.literal(x.val) if isinstance(x, Literal) else nodes[x]  # noqa: E731
        for equation in jaxpr.eqns:
            operands = [read(x) for x in equation.invars]
            if equation.primitive.name in CALLS:
                called = next(equation.params[name] for name in CALLED if name in equation.params)
                results = self.flatten(getattr(called, "jaxpr", called), getattr(called, "consts", ()), operands)
            elif equation.primitive.name in SAME:
                results = operands
            else:
                avals = [x.aval for x in equation.outvars]
                results = [Node(x.shape, x.dtype, None, equation, operands, i) for i, x in enumerate(avals)]
            nodes |= dict(zip(equation.outvars, results, strict=True))
        return [read(x) for x in jaxpr.outvars]

    def write(self, outputs: list[Node]) -> Source:
        """The source of some nodes. What is used once, and short, stands inside the expression that uses it."""
        for node in in_order(outputs):
            value = express(node)
            if all(x.value.array is not None for x in node.operands):
                value = self.fold(value)
            if value.array is None and (node.num_uses > 1 or len(value.text) > LONGEST):
                self.lines.append(f"x{len(self.lines) + 1} = {value.text}")
                value = Value(f"x{len(self.lines)}", is_full=value.is_full)
            node.value = value
        texts = [node.text for node in outputs]
        everything = "\n".join([*self.lines, *texts])
        arrays = {name: self.arrays[name] for name in dict.fromkeys(ARRAY.findall(everything))}
        helpers = [text for name, text in HELPERS.items() if f"{name}(" in everything]
        return Source(arrays, self.lines, texts, helpers)

    def fold(self, value: Value) -> Value:
        """The constant that an expression of constants is, unless its shape depends on n."""
        names = {"np": np, "math": math, "arrays": self.arrays}
        for text in HELPERS.values():
            exec(text, names)
        try:
            array = np.asarray(eval(value.text, names))
        except NameError:
            return value
        return self.constant(ARRAY.sub(r"\1", value.text), array)._replace(is_full=value.is_full)


def in_order(outputs: list[Node]) -> list[Node]:
    """The nodes that make the outputs, each after its operands, with their uses counted."""
    order = []

    def visit(node: Node) -> None:
        node.num_uses += 1
        if node.num_uses == 1 and node.equation is not None:
            for operand in node.operands:
                visit(operand)
            order.append(node)

    for node in outputs:
        visit(node)
    return order


# -- Expressions -------------------------------------------------------------------------------------------------------


def express(node: Node) -> Value:
    """The expression that makes a node."""
    name, params = node.equation.primitive.name, node.equation.params
    values = [x.value for x in node.operands]
    # numpy broadcasts the result of such an operation too, unless one operand has the whole shape.
    is_full = any(x.value.is_full and x.shape == node.shape for x in node.operands)
    if name in OPERATORS and not (name == "div" and np.issubdtype(node.dtype, np.integer)):
        sign, level = OPERATORS[name]
        left = level + (level == COMPARISON)  # a < b < c would be two comparisons of b
        return Value(f"{values[0].within(left)} {sign} {values[1].within(level + 1)}", level, is_full)
    if name in FUNCTIONS:
        return Value(f"np.{FUNCTIONS[name]}({', '.join(x.text for x in values)})", is_full=is_full)
    if name in FORMATS:
        text, level = FORMATS[name]
        return Value(text.format(*(x.text for x in values)), level, is_full)
    if name in REDUCTIONS:
        axes = params["axes"]
        axis = axes[0] if len(axes) == 1 else tuple(axes)
        return Value(f"{node.operands[0].atom}.{REDUCTIONS[name]}(axis={axis})")
    value = EXPRESSIONS[name](node, *node.operands, **params) if name in EXPRESSIONS else None
    if value is None:
        place = source_info_util.summarize(node.equation.source_info)
        raise ValueError(f"the policy has an operation that is not translated to numpy: {name}, at {place}")
    return value._replace(is_full=is_full) if name in ("integer_pow", "select_n") else value


def shape_text(shape: Sequence[Any]) -> str:
    """A tuple in the source; symbolic dimensions are expressions in n."""
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


def dtype_text(dtype: Any) -> str:
    """A dtype in the source."""
    return "bool" if np.dtype(dtype).kind == "b" else f"np.{np.dtype(dtype).name}"


def index_text(ranges: Iterable[tuple[Any, Any, Any, int]]) -> str:
    """The index that takes a range (start, stop, size, stride) of each dimension."""
    texts = []
    for start, stop, size, stride in ranges:
        text = f"{'' if start == 0 else start}:{'' if stop == size else stop}"
        texts.append(text if stride == 1 else f"{text}:{stride}")
    return ", ".join(texts)


def list_text(nodes: Iterable[Node]) -> str:
    """A list in the source, on several lines if it is long."""
    texts = [x.text for x in nodes]
    short = f"[{', '.join(texts)}]"
    return short if len(short) <= LONGEST else "[\n        " + ",\n        ".join(texts) + ",\n    ]"


def _integer_pow(node: Node, x: Node, *, y: int) -> Value:
    return Value(f"np.power({x.value.text}, {y})")


def _convert(node: Node, x: Node, **_: Any) -> Value:
    if x.dtype == node.dtype:
        return x.value
    if not x.shape:
        return Value(f"{dtype_text(node.dtype)}({x.value.text})")
    return Value(f"{x.value.within(ATOM)}.astype({dtype_text(node.dtype)})", is_full=x.value.is_full)


def _select(node: Node, which: Node, *cases: Node) -> Value | None:
    if which.dtype != bool:
        return None
    no, yes = (x.value.text for x in cases)
    return Value(f"np.where({which.value.text}, {yes}, {no})")


def _arg(node: Node, x: Node, *, axes: tuple[int, ...], **_: Any) -> Value:
    return Value(f"np.{node.equation.primitive.name}({x.text}, axis={axes[0]}).astype({dtype_text(node.dtype)})")


def _cumsum(node: Node, x: Node, *, axis: int, reverse: bool) -> Value | None:
    return None if reverse else Value(f"np.cumsum({x.text}, axis={axis}, dtype={dtype_text(node.dtype)})")


def _broadcast(node: Node, x: Node, *, broadcast_dimensions: tuple[int, ...], **_: Any) -> Value:
    """Dimensions in their places, counted from the right: the rest is what numpy does by itself."""
    inside = range(min(broadcast_dimensions, default=len(node.shape)), len(node.shape))
    is_number = x.value.array is not None and x.value.array.ndim == 0
    if is_number or tuple(inside) == tuple(broadcast_dimensions):
        return x.value._replace(is_full=x.value.is_full and x.shape == node.shape)
    index = ", ".join(":" if i in broadcast_dimensions else "None" for i in inside)
    sizes = dict(zip(broadcast_dimensions, x.shape, strict=True))
    is_full = inside[0] == 0 and tuple(node.shape) == tuple(sizes.get(i, 1) for i in inside)
    return Value(f"{x.atom}[{index}]", is_full=is_full)


def _reshape(node: Node, x: Node, *, dimensions: Any, **_: Any) -> Value | None:
    if dimensions is not None:
        return None
    ones = len(node.shape) - len(x.shape)
    if ones >= 0 and tuple(node.shape) == (1,) * ones + tuple(x.shape):
        return x.value._replace(is_full=x.value.is_full and ones == 0)
    return Value(f"{x.atom}.reshape{shape_text(node.shape)}")


def _squeeze(node: Node, x: Node, *, dimensions: tuple[int, ...]) -> Value:
    return Value(f"{x.atom}.squeeze({tuple(dimensions)})")


def _transpose(node: Node, x: Node, *, permutation: tuple[int, ...]) -> Value:
    return Value(f"{x.atom}.transpose{shape_text(permutation)}")


def _concatenate(node: Node, *parts: Node, dimension: int) -> Value:
    return Value(f"np.concatenate({list_text(parts)}, axis={dimension})")


def _stack(node: Node, *parts: Node, axis: int) -> Value:
    return Value(f"np.stack({list_text(parts)}, axis={axis})")


def _slice(node: Node, x: Node, *, start_indices: Any, limit_indices: Any, strides: Any) -> Value:
    strides = strides or (1,) * len(x.shape)
    return Value(f"{x.atom}[{index_text(zip(start_indices, limit_indices, x.shape, strides, strict=True))}]")


def _split(node: Node, x: Node, *, sizes: Sequence[int], axis: int) -> Value:
    start = int(sum(sizes[: node.index]))
    ranges = [(0, size, size, 1) for size in x.shape]
    ranges[axis] = start, start + int(sizes[node.index]), x.shape[axis], 1
    return Value(f"{x.atom}[{index_text(ranges)}]")


def _gather(node: Node, x: Node, at: Node, *, dimension_numbers: Any, slice_sizes: Any, **_: Any) -> Value | None:
    """A part that begins at a constant place: how `x[..., 0, :]` and the patches of an image are traced."""
    numbers = dimension_numbers
    kept = [i for i in range(len(x.shape)) if i not in numbers.collapsed_slice_dims]
    is_part = at.value.array is not None and len(at.shape) == 1 and not numbers.operand_batching_dims
    if not is_part or tuple(numbers.offset_dims) != tuple(range(len(kept))):
        return None
    starts = dict(zip(numbers.start_index_map, np.broadcast_to(at.value.array, at.shape).tolist(), strict=True))
    ranges = [(starts.get(i, 0), starts.get(i, 0) + size, x.shape[i], 1) for i, size in enumerate(slice_sizes)]
    text = index_text(ranges)
    if numbers.collapsed_slice_dims:
        pieces = [str(starts[i]) if i in numbers.collapsed_slice_dims else p for i, p in enumerate(text.split(", "))]
        text = ", ".join(pieces)
    return Value(f"{x.atom}[{text}]")


def _dot(node: Node, x: Node, y: Node, *, dimension_numbers: Any, **_: Any) -> Value:
    (left, right), (left_batch, right_batch) = dimension_numbers
    if tuple(left) == (len(x.shape) - 1,) and tuple(right) == (0,) and len(y.shape) == 2 and not left_batch:
        return Value(f"{x.value.within(PRODUCT) if x.value.is_full else x.text} @ {y.atom}", PRODUCT)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    a = [next(letters) for _ in x.shape]
    shared = dict(zip([*right_batch, *right], [a[i] for i in (*left_batch, *left)], strict=True))
    b = [shared[i] if i in shared else next(letters) for i in range(len(y.shape))]
    kept = [a[i] for i in left_batch] + [c for i, c in enumerate(a) if i not in (*left_batch, *left)]
    kept += [c for i, c in enumerate(b) if i not in shared]
    subscripts = f"'{''.join(a)},{''.join(b)}->{''.join(kept)}'"  # as part of a name it stands in double quotes
    return Value(f"np.einsum({subscripts}, {x.text}, {y.text})")


def _conv(node: Node, x: Node, kernel: Node, *, window_strides: Any, padding: Any, **params: Any) -> Value | None:
    order = params["dimension_numbers"]
    is_plain = (order.lhs_spec, order.rhs_spec, order.out_spec) == ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    groups = params["feature_group_count"], params["batch_group_count"]
    dilations = {*params["lhs_dilation"], *params["rhs_dilation"]}
    if not is_plain or groups != (1, 1) or dilations != {1} or min(min(pair) for pair in padding) < 0:
        return None
    return Value(f"conv({x.text}, {kernel.text}, {tuple(window_strides)}, {tuple(map(tuple, padding))})")


def _iota(node: Node, *, dimension: int, **_: Any) -> Value:
    places = ", ".join(":" if i == dimension else "None" for i in range(dimension, len(node.shape)))
    text = f"np.arange({node.shape[dimension]}, dtype={dtype_text(node.dtype)})"
    return Value(text if places == ":" else f"{text}[{places}]", is_full=len(node.shape) == 1)


EXPRESSIONS: dict[str, Callable[..., Value | None]] = {
    "argmax": _arg,
    "argmin": _arg,
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "conv_general_dilated": _conv,
    "convert_element_type": _convert,
    "cumsum": _cumsum,
    "dot_general": _dot,
    "gather": _gather,
    "integer_pow": _integer_pow,
    "iota": _iota,
    "reshape": _reshape,
    "select_n": _select,
    "slice": _slice,
    "split": _split,
    "squeeze": _squeeze,
    "stack": _stack,
    "transpose": _transpose,
}
