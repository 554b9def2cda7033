"""Published pipeline measurements: the zero-bubble paper's table (arXiv 2401.10241, tables 4, 5).

Stage times in milliseconds and bubble rates, (cost - work)/cost, where the cost is the longest time
of any stage.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One model and number of micro-batches.  chunks: of the interleaved timetable."""

    model: str
    ranks: int
    chunks: int
    micro_batches: int
    forward: float
    input_grad: float
    weight_grad: float
    transfer: float
    one_f_one_b: float
    interleaved: float
    h1: float
    h2: float
    two_p: float

    @property
    def kept(self) -> float:
        """M_W/M_B of the model's layers: 32h of h(34 + 5as/h) bytes a token, s = 1,024."""
        heads, hidden = {"1.5B": (24, 2304), "14.6B": (40, 5120)}[self.model]
        return 32 * hidden / (34 * hidden + 5 * heads * 1024)

    def __str__(self) -> str:
        return f"{self.model}-{self.micro_batches}"


ROWS = (
    Row("1.5B", 8, 3, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1055, 0.1585, 0.1083, 0.0433),
    Row("1.5B", 8, 3, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.0818, 0.1242, 0.0837, 0.0039),
    Row("1.5B", 8, 3, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0443, 0.0674, 0.0444, 0.0026),
    Row("14.6B", 16, 3, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1104, 0.1397, 0.0672, 0.0066),
    Row("14.6B", 16, 3, 64, 11.307, 11.254, 8.101, 0.379, 0.2082, 0.0852, 0.1088, 0.0516, 0.0054),
    Row("14.6B", 16, 3, 128, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0445, 0.0576, 0.0266, 0.0028),
)
